//! A generation on its way to a client, as a whole or as a stream of events.

use super::in_own_words;
use super::request::Kept;
use super::response::ResponseObject;
use super::store::{NewTurn, Store};
use super::translator::Translator;
use crate::error::ApiError;
use crate::generate::{Generation, Happening};
use crate::http::sse::{SseItem, sse};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use std::time::Duration;

/// A generation on its way to a client.
pub(super) struct Run {
    pub(super) generation: Generation,
    pub(super) translator: Translator,
    /// Keeps the response when it is complete.
    pub(super) keeper: Option<Keeper>,
}

/// What keeps a response.
pub(super) struct Keeper {
    pub(super) store: Store,
    pub(super) owner: String,
    pub(super) kept: Kept,
}

impl Run {
    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Prefill { .. } => {}
            Happening::Delta { delta, .. } => self.translator.delta(delta),
            Happening::Ended { ended, .. } => {
                self.translator.finish(&ended, &self.generation.summary());
                if let Some(keeper) = self.keeper.take() {
                    keeper.keep(self.translator.response());
                }
            }
            Happening::Failed(error) => self.translator.fail(&in_own_words(error)),
        }
    }

    /// The response as a whole.
    ///
    /// # Errors
    /// If the generation fails.
    pub(super) async fn collect(mut self) -> Result<ResponseObject, ApiError> {
        while let Some(happening) = self.generation.next().await {
            if let Happening::Failed(error) = happening {
                return Err(in_own_words(error));
            }
            self.take(happening);
        }
        Ok(self.translator.into_response())
    }

    /// The response that streams it.
    pub(super) fn respond(mut self, keep_alive: Duration) -> Response {
        self.translator.start();
        let first = events(&mut self.translator);
        let rest = stream::unfold(self, |mut run| async move {
            let happening = run.generation.next().await?;
            let comment = match &happening {
                Happening::Prefill { done, total } => {
                    Some(SseItem::Comment(format!("prefill {done}/{total}")))
                }
                _ => None,
            };
            run.take(happening);
            let items: Vec<SseItem> =
                comment.into_iter().chain(events(&mut run.translator)).collect();
            Some((stream::iter(items), run))
        });
        sse(stream::iter(first).chain(rest.flatten()), keep_alive)
    }
}

impl Keeper {
    fn keep(self, response: &ResponseObject) {
        let Self { store, owner, kept: Kept { input, before } } = self;
        let text = match serde_json::to_string(response) {
            Ok(text) => text,
            Err(error) => return tracing::error!("a response cannot be kept: {error}"),
        };
        let item_ids = response.output.iter().map(|item| item.id().to_owned()).collect();
        let id = response.id.clone();
        store.put(NewTurn { id, owner, input, response: text, item_ids, before });
    }
}

fn events(translator: &mut Translator) -> Vec<SseItem> {
    translator.take_events().into_iter().map(SseItem::from).collect()
}

/// The response that begins to stream and says at once that it cannot go on.
pub(super) fn refused_in_stream(
    mut translator: Translator,
    error: &ApiError,
    keep_alive: Duration,
) -> Response {
    translator.start();
    translator.fail(error);
    sse(stream::iter(events(&mut translator)), keep_alive)
}
