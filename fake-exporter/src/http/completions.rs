//! `/completion`, `/v1/completions` and `/v1/chat/completions`: one way to answer, three forms of the answer.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::mpsc::Receiver;

use super::ask::{Ask, Prompt};
use super::body::{Body, Json};
use super::error::ApiError;
use super::job::{Event, next, start};
use super::reply::{Form, Reply};
use super::server::{Server, blocking};
use crate::decoder::checked_ids;

pub(super) async fn completion(state: State<Arc<Server>>, body: Body<Ask>) -> Result<Response, ApiError> {
    answer(Form::Completion, state, body).await
}

pub(super) async fn text_completion(state: State<Arc<Server>>, body: Body<Ask>) -> Result<Response, ApiError> {
    answer(Form::Text, state, body).await
}

pub(super) async fn chat_completion(state: State<Arc<Server>>, body: Body<Ask>) -> Result<Response, ApiError> {
    answer(Form::Chat, state, body).await
}

async fn answer(form: Form, State(server): State<Arc<Server>>, Body(ask): Body<Ask>) -> Result<Response, ApiError> {
    let (ask, text, tokens) = {
        let server = Arc::clone(&server);
        blocking(move || {
            let (text, tokens) = prompt(form, &server, &ask)?;
            Ok((ask, text, tokens))
        })
        .await?
    };
    let request = ask.request(tokens);
    let reply = Reply::new(form, server.brain().name(), &ask, &request, text);
    let mut events = start(server, request, ask.is_streamed()).await;
    if ask.is_streamed() {
        // What can be refused is refused before the stream begins, with a status of its own.
        return match next(&mut events).await {
            Event::Failed(error) => Err(error),
            first => Ok(streamed(reply, first, events)),
        };
    }
    loop {
        match next(&mut events).await {
            Event::Piece(_) => {}
            Event::Done(completion) => return Ok(Json(reply.whole(&completion)).into_response()),
            Event::Failed(error) => return Err(error),
        }
    }
}

/// The prompt as text, where it is one, and its tokens.
fn prompt(form: Form, server: &Server, ask: &Ask) -> Result<(String, Vec<i32>), ApiError> {
    let brain = server.brain();
    let text = match (form, &ask.messages, &ask.prompt) {
        (Form::Chat, Some(messages), _) => brain.apply_template(messages)?,
        (Form::Chat, None, _) => return Err(ApiError::invalid("\"messages\" is required")),
        (_, _, Some(Prompt::Text(text))) => text.clone(),
        (_, _, Some(Prompt::Tokens(ids))) => return Ok((String::new(), checked_ids(ids, brain.n_vocab())?)),
        (_, _, None) => return Err(ApiError::invalid("\"prompt\" is required")),
    };
    let tokens = brain.tokenize(&text, true, true)?;
    Ok((text, tokens))
}

/// Frames of `data: {json}`, one HTTP chunk for each event.
fn streamed(reply: Reply, first: Event, events: Receiver<Event>) -> Response {
    let chunks = stream::unfold(Some((reply, Some(first), events)), async |state| {
        let (mut reply, first, mut events) = state?;
        let event = match first {
            Some(event) => event,
            None => next(&mut events).await,
        };
        let (frames, is_last) = match event {
            Event::Piece(piece) => (reply.piece_frames(&piece), false),
            Event::Done(completion) => (reply.closing_frames(&completion), true),
            Event::Failed(error) => (Reply::error_frames(&error), true),
        };
        let state = (!is_last).then_some((reply, None, events));
        Some((Ok::<_, Infallible>(Bytes::from(frames)), state))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], HttpBody::from_stream(chunks)).into_response()
}
