//! The one slot and the queue before it: first come, first served, and not too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Between two looks at a slot that is closed: a semaphore wakes nobody then.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The backend's slot.
#[derive(Debug)]
pub struct Slot {
    // Fair: permits go to those who wait in the order in which they came.
    turn: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    most_waiting: usize,
}

/// The right to use the slot, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// Why somebody did not get the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotBusy {
    /// The queue is full.
    #[error("{waiting} requests wait for the slot already; try again later")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// The slot was not free in time.
    #[error("the slot was not free within {} s; try again later", limit.as_secs())]
    TooLong {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The server is ending.
    #[error("the server is stopping")]
    Stopping,
}

impl Slot {
    /// A free slot for which at most `most_waiting` may wait.
    pub fn new(most_waiting: usize) -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), waiting: Arc::default(), most_waiting }
    }

    /// Waits for the slot, at most `limit`. Whoever stops waiting leaves the queue.
    ///
    /// # Errors
    /// [`SlotBusy`].
    pub async fn turn(&self, limit: Duration) -> Result<Turn, SlotBusy> {
        if let Ok(permit) = Arc::clone(&self.turn).try_acquire_owned() {
            return Ok(Turn { _permit: permit });
        }
        let _place = self.place_in_queue()?;
        match tokio::time::timeout(limit, Arc::clone(&self.turn).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Turn { _permit: permit }),
            Ok(Err(_)) => Err(SlotBusy::Stopping),
            Err(_) => Err(SlotBusy::TooLong { limit }),
        }
    }

    /// Lets nobody have the slot any more. Whoever has it keeps it.
    pub fn close(&self) {
        self.turn.close();
    }

    /// Waits until nobody has the slot, at most `limit`.
    pub async fn is_free(&self, limit: Duration) {
        let free = async {
            while self.turn.available_permits() == 0 {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(limit, free).await;
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn place_in_queue(&self) -> Result<PlaceInQueue, SlotBusy> {
        let grown = |waiting| (waiting < self.most_waiting).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            Ok(_) => Ok(PlaceInQueue(Arc::clone(&self.waiting))),
            Err(waiting) => Err(SlotBusy::QueueFull { waiting }),
        }
    }
}

struct PlaceInQueue(Arc<AtomicUsize>);

impl Drop for PlaceInQueue {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_slot_goes_to_whoever_waits_longest() {
        let slot = Slot::new(2);
        let turn = slot.turn(LONG).await.unwrap();
        let mut first = Box::pin(slot.turn(LONG));
        let mut second = Box::pin(slot.turn(LONG));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        drop(turn);
        // Nobody overtakes, not even one who asks while nobody has the slot.
        let late = slot.turn(LONG).now_or_never();
        assert!(matches!(late, Some(Err(SlotBusy::QueueFull { waiting: 2 }))), "{late:?}");
        assert!((&mut second).now_or_never().is_none());
        let Some(Ok(turn)) = first.now_or_never() else { panic!("the first has the slot") };
        drop(turn);
        assert!(second.await.is_ok());
        assert_eq!(slot.waiting(), 0);
    }

    #[tokio::test]
    async fn whoever_stops_waiting_leaves_the_queue() {
        let slot = Slot::new(1);
        let _turn = slot.turn(LONG).await.unwrap();
        {
            let mut waiting = Box::pin(slot.turn(LONG));
            assert!((&mut waiting).now_or_never().is_none());
            assert_eq!(slot.turn(LONG).await.unwrap_err(), SlotBusy::QueueFull { waiting: 1 });
        }
        let limit = Duration::from_millis(1);
        assert_eq!(slot.turn(limit).await.unwrap_err(), SlotBusy::TooLong { limit });
        assert_eq!(slot.waiting(), 0);
    }

    #[tokio::test]
    async fn a_closed_slot_is_left_by_whoever_has_it_and_given_to_nobody() {
        let slot = Slot::new(1);
        let turn = slot.turn(LONG).await.unwrap();
        let mut waiting = Box::pin(slot.turn(LONG));
        assert!((&mut waiting).now_or_never().is_none());
        slot.close();
        assert_eq!(waiting.await.unwrap_err(), SlotBusy::Stopping);
        assert_eq!(slot.turn(LONG).await.unwrap_err(), SlotBusy::Stopping);
        let mut free = Box::pin(slot.is_free(LONG));
        assert!((&mut free).now_or_never().is_none());
        drop(turn);
        free.await;
    }

    #[tokio::test]
    async fn a_queue_of_none_lets_nobody_wait() {
        let slot = Slot::new(0);
        let turn = slot.turn(LONG).await.unwrap();
        assert_eq!(slot.turn(LONG).await.unwrap_err(), SlotBusy::QueueFull { waiting: 0 });
        drop(turn);
        assert!(slot.turn(LONG).await.is_ok());
    }
}
