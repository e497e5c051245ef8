//! What a proxy and a resident provider say to each other (docs/src/protocol.md, section 9.4).

use serde::{Deserialize, Serialize};

/// The version of what follows. A provider says it once it is ready.
pub(crate) const PROTOCOL: u32 = 1;

/// What a proxy says. Descriptors ride beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Order {
    /// From now on the cache lies in other memory. The header, sealed, and the regions' descriptors come with this and, where
    /// there are too many for one packet, with [`Order::More`]: `descriptors` in all, the header's among them.
    Regions { generation: u64, descriptors: usize },
    /// More of them.
    More { generation: u64 },
    /// Prefill the tokens that come with it, sealed, into the cache of that generation, or into a state file.
    Prefill {
        id: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        out: Option<String>,
    },
}

/// What a provider says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Word {
    /// It has started, and takes orders.
    Ready { protocol: u32 },
    /// It has prefilled, and writes no more.
    Done {
        id: u64,
        n_tokens: u64,
        argmax: i64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefill_ms: Option<f64>,
    },
    /// It has not, and writes no more.
    Failed { id: u64, error: String },
}
