//! The table: where in the cycle, who gets which signal, and what becomes of the request that was under way.

use super::Signal::{self, Kill, Stop};
use super::Step::{self, Adopting, Completing, MessageArriving, ProviderDone, ProviderWriting, WaitingForShare};
use super::Victim::{self, Client, Decoder, Provider, Proxy};

/// What becomes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The decoder answers from the cells that the provider filled.
    Shared,
    /// It is answered, by whichever route.
    Served,
    /// The decoder prefills it itself.
    Own,
    /// The same, if another decoder is up in time; else 502.
    OwnOr502,
    /// 502, once the deadlines have passed.
    Is502,
    /// The client has a part of its answer, and learns that there will be no more.
    Broken,
    /// The client loses its connection.
    Cut,
    /// Nobody is there to answer.
    Nobody,
    /// There is no such process at this step.
    None,
}

use Fate::{Broken, Cut, Is502, Nobody, None, Own, OwnOr502, Served, Shared};

const COLUMNS: [(Victim, Signal); 8] = [
    (Decoder, Kill),
    (Decoder, Stop),
    (Provider, Kill),
    (Provider, Stop),
    (Proxy, Kill),
    (Proxy, Stop),
    (Client, Kill),
    (Client, Stop),
];

#[rustfmt::skip]
const TABLE: [(Step, [Fate; 8]); 6] = [
    //                  decoder           provider     proxy          client
    //                  Kill      Stop    Kill  Stop   Kill  Stop     Kill    Stop
    (WaitingForShare, [ OwnOr502, Is502,  None, None,  Cut,  Served,  Nobody, Shared ]),
    (MessageArriving, [ OwnOr502, Is502,  None, None,  Cut,  Served,  Nobody, Shared ]),
    (ProviderWriting, [ OwnOr502, Is502,  Own,  Own,   Cut,  Served,  Nobody, Shared ]),
    (ProviderDone,    [ OwnOr502, Is502,  Own,  Own,   Cut,  Served,  Nobody, Shared ]),
    (Adopting,        [ OwnOr502, Is502,  None, None,  Cut,  Served,  Nobody, Shared ]),
    (Completing,      [ Broken,   Broken, None, None,  Cut,  Served,  Nobody, Shared ]),
];

/// The column of `victim` and `signal`: each step at which there is such a process, and what becomes of the request.
pub fn column(victim: Victim, signal: Signal) -> impl Iterator<Item = (Step, Fate)> {
    let column = COLUMNS.iter().position(|column| *column == (victim, signal)).expect("a column");
    TABLE.iter().map(move |(step, fates)| (*step, fates[column])).filter(|(_, fate)| *fate != None)
}
