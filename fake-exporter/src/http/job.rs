//! A completion at work on a thread of its own, and the events that it sends.

use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::error::ApiError;
use super::sampling::parameters;
use super::server::Server;
use crate::decoder::{Completion, Piece, Request};

/// What a completion has to say, in order; the last is `Done` or `Failed`.
pub(super) enum Event {
    Piece(Piece),
    Done(Box<Completion>),
    Failed(ApiError),
}

/// How many events may wait for a slow client before the generation does.
const QUEUE: usize = 16;

/// Waits for the decoder and lets it answer `request`. Dropping the receiver ends the generation.
pub(super) async fn start(server: Arc<Server>, request: Request, stream: bool) -> Receiver<Event> {
    let mut decoder = server.decoder().await;
    let (sender, receiver) = channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        server.note_task(server.next_request(), parameters(&request, stream));
        let goes_on = || !(sender.is_closed() || server.is_stopping());
        let answer = decoder.complete(&request, &goes_on, &mut |piece| send(&sender, Event::Piece(piece)));
        server.note_tokens(&decoder);
        // The slot is free before the client can know it.
        drop(decoder);
        let last = match answer {
            Ok(completion) => Event::Done(Box::new(completion)),
            Err(error) => Event::Failed(error.into()),
        };
        let _ = send(&sender, last);
    });
    receiver
}

fn send(sender: &Sender<Event>, event: Event) -> ControlFlow<()> {
    if sender.blocking_send(event).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// The next event; a job that ended without a last one has panicked.
pub(super) async fn next(events: &mut Receiver<Event>) -> Event {
    match events.recv().await {
        Some(event) => event,
        None => Event::Failed(ApiError::internal("the decoder failed; its log says why")),
    }
}
