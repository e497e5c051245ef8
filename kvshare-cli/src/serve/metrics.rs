//! What `/metrics` tells, in Prometheus' text.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// How a prompt's cache reached the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By descriptor.
    Shared,
    /// Through a state file.
    File,
    /// Not at all.
    None,
}

impl Route {
    /// Its name in labels and in the response header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::File => "file",
            Self::None => "none",
        }
    }
}

/// How a handoff ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The cache reached the backend.
    Done,
    /// The handshake failed; the file route was taken.
    FellBack,
    /// The prompt was none that can be handed over.
    NotHandedOver,
    /// It failed; the request was forwarded as it came.
    Failed,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::FellBack => "fell_back",
            Self::NotHandedOver => "not_handed_over",
            Self::Failed => "failed",
        }
    }
}

/// A part of a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for the slot.
    Queue,
    /// From asking for the share to holding its descriptors.
    Share,
    /// The provider's prefill.
    Prefill,
    /// The backend taking the cells.
    Adopt,
    /// The backend reading a state file.
    Restore,
    /// From the handoff's start to the backend's first byte.
    FirstByte,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Share => "share",
            Self::Prefill => "prefill",
            Self::Adopt => "adopt",
            Self::Restore => "restore",
            Self::FirstByte => "first_byte",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandoffLabels {
    route: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

/// The proxy's counts and times.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    handoffs: Family<HandoffLabels, Counter>,
    stages: Family<StageLabels, Histogram, fn() -> Histogram>,
    /// Handoffs after which the backend evaluated more than one prompt token.
    pub wasted: Counter,
    /// Prompt tokens that the backend evaluated after handoffs.
    pub evaluated: Counter,
    /// Bytes of the regions handed over.
    pub bytes_shared: Counter,
    /// Bytes of the state files handed over.
    pub bytes_copied: Counter,
    descriptors_received: Counter,
    descriptors_closed: Counter,
    /// How often the backend was started again.
    pub backend_restarts: Counter,
    waiting: Gauge<u64, AtomicU64>,
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("kvshare");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let wasted =
            counter("wasted_handoffs", "Handoffs after which the backend evaluated more than one prompt token");
        let evaluated = counter("evaluated_tokens", "Prompt tokens that the backend evaluated after handoffs");
        let bytes_shared = counter("shared_bytes", "Bytes of the regions handed over by descriptor");
        let bytes_copied = counter("copied_bytes", "Bytes of the state files handed over");
        let descriptors_received = counter("descriptors_received", "Descriptors that the backend sent");
        let descriptors_closed = counter("descriptors_closed", "Descriptors of the backend that were closed again");
        let backend_restarts = counter("backend_restarts", "How often the backend was started again");
        let handoffs = Family::default();
        registry.register("handoffs", "Requests by route and outcome", handoffs.clone());
        // From 0.1 ms to 100 s.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(1e-4, 4.0, 11));
        let stages = Family::new_with_constructor(histogram);
        registry.register_with_unit("stage", "Time by stage of a handoff", Unit::Seconds, stages.clone());
        let waiting = Gauge::default();
        registry.register("queue_length", "Requests that wait for the slot", waiting.clone());
        Arc::new(Self {
            registry,
            handoffs,
            stages,
            wasted,
            evaluated,
            bytes_shared,
            bytes_copied,
            descriptors_received,
            descriptors_closed,
            backend_restarts,
            waiting,
        })
    }

    /// Counts `number` descriptors that the backend sent, and counts them again when what this returns is dropped, which
    /// is to be when they are closed.
    pub fn descriptors(self: &Arc<Self>, number: usize) -> DescriptorCount {
        self.descriptors_received.inc_by(number as u64);
        DescriptorCount { metrics: Arc::clone(self), number: number as u64 }
    }

    /// Counts a request.
    pub fn count(&self, route: Route, outcome: Outcome) {
        self.handoffs.get_or_create(&HandoffLabels { route: route.name(), outcome: outcome.name() }).inc();
    }

    /// Notes how long a stage took.
    pub fn time(&self, stage: Stage, took: Duration) {
        self.stages.get_or_create(&StageLabels { stage: stage.name() }).observe(took.as_secs_f64());
    }

    /// All of it as text, with `waiting` requests in the queue.
    pub fn text(&self, waiting: usize) -> String {
        self.waiting.set(waiting as u64);
        let mut text = String::new();
        // Writing to a String fails only where an encoder does, and then what was written is still right.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

/// Descriptors that are open.
#[derive(Debug)]
pub struct DescriptorCount {
    metrics: Arc<Metrics>,
    number: u64,
}

impl Drop for DescriptorCount {
    fn drop(&mut self) {
        self.metrics.descriptors_closed.inc_by(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_every_count() {
        let metrics = Metrics::new();
        metrics.count(Route::Shared, Outcome::Done);
        metrics.time(Stage::Share, Duration::from_micros(430));
        metrics.bytes_copied.inc_by(7);
        let text = metrics.text(3);
        for line in [
            "kvshare_handoffs_total{route=\"shared\",outcome=\"done\"} 1\n",
            "kvshare_stage_seconds_count{stage=\"share\"} 1\n",
            "kvshare_stage_seconds_bucket{le=\"0.0004\",stage=\"share\"} 0\n",
            "kvshare_copied_bytes_total 7\n",
            "kvshare_shared_bytes_total 0\n",
            "kvshare_queue_length 3\n",
            "kvshare_backend_restarts_total 0\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
