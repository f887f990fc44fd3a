//! From what happens to a generation to the events and the object of a response.

use super::event::{Body, ErrorDetails, Event};
use super::items::seal;
use super::response::{
    IncompleteDetails, OutputItem, Part, ResponseError, ResponseObject, Status, Usage,
};
use super::tools::{Offer, Origin, custom_input};
use crate::dialect::openai_type;
use crate::error::{ApiError, ErrorKind};
use crate::generate::{Delta, End, Ended, Summary};
use crate::openai::logprobs::TokenLogprob;
use crate::openai::usage::{CacheReport, TimingsReport};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// How thinking is told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThinkingForm {
    /// In the place of a summary, because the request asked for one; else as content.
    pub(super) is_summary: bool,
    /// Once more for clients that send back nothing else.
    pub(super) is_sealed: bool,
}

/// A response under way.
#[derive(Debug)]
pub(super) struct Translator {
    response: ResponseObject,
    offer: Offer,
    thinking: ThinkingForm,
    sequence: u64,
    /// The arguments of the call that is the last item, while it goes on.
    arguments: Option<String>,
    /// Whether the last item goes on.
    is_open: bool,
    events: Vec<Event>,
}

impl Translator {
    /// `response` is the object as it is at the beginning.
    pub(super) fn new(response: ResponseObject, offer: Offer, thinking: ThinkingForm) -> Self {
        let (sequence, arguments, is_open, events) = (0, None, false, vec![]);
        Self { response, offer, thinking, sequence, arguments, is_open, events }
    }

    /// The object as it is now.
    pub(super) fn response(&self) -> &ResponseObject {
        &self.response
    }

    /// The object as it is at the end.
    pub(super) fn into_response(self) -> ResponseObject {
        self.response
    }

    /// Events that have come up since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The response begins.
    pub(super) fn start(&mut self) {
        self.push_response("response.created");
        self.push_response("response.in_progress");
    }

    /// The reply goes on.
    pub(super) fn delta(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning(text),
            Delta::Content(text, logprobs) => {
                let logprobs = logprobs.iter().map(TokenLogprob::from).collect();
                self.content(text, logprobs);
            }
            Delta::CallStart { id, name, .. } => self.call(id, &name),
            Delta::CallArguments { json, .. } => self.call_arguments(json),
            Delta::CallEnd { complete: true, .. } => self.close(Status::Completed),
            Delta::CallEnd { complete: false, .. } => self.close(Status::Incomplete),
        }
    }

    /// The reply has ended.
    pub(super) fn finish(&mut self, ended: &Ended, summary: &Summary) {
        let status = if ended.end == End::Length { Status::Incomplete } else { Status::Completed };
        self.close(status);
        if self.response.output.is_empty() {
            // Clients expect an item, and there were no words.
            self.open_message();
            self.close(status);
        }
        let response = &mut self.response;
        response.status = status;
        response.completed_at = Some(now());
        response.usage = Some(Usage::from(summary));
        response.timings = Some(TimingsReport::from(summary));
        response.cache = Some(CacheReport::from(summary));
        if status == Status::Incomplete {
            response.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens" });
            self.push_response("response.incomplete");
        } else {
            self.push_response("response.completed");
        }
    }

    /// The generation came to nothing.
    pub(super) fn fail(&mut self, error: &ApiError) {
        self.close(Status::Incomplete);
        let details = ErrorDetails {
            kind: openai_type(error.kind),
            code: Some(error_code(error)),
            message: error.message.clone(),
            param: error.param.clone(),
        };
        self.push(
            "error",
            Body::Error {
                code: details.code,
                message: details.message.clone(),
                param: details.param.clone(),
                error: details,
            },
        );
        self.response.status = Status::Failed;
        self.response.error =
            Some(ResponseError { code: error_code(error), message: error.message.clone() });
        self.push_response("response.failed");
    }

    fn reasoning(&mut self, delta: String) {
        let is_summary = self.thinking.is_summary;
        if !self.is_open
            || !matches!(self.response.output.last(), Some(OutputItem::Reasoning { .. }))
        {
            self.close(Status::Completed);
            let content = (!is_summary).then(Vec::new);
            self.open(OutputItem::Reasoning {
                id: new_id("rs"),
                summary: vec![],
                content,
                encrypted_content: None,
            });
            let text = String::new();
            self.add_part(if is_summary {
                Part::SummaryText { text }
            } else {
                Part::ReasoningText { text }
            });
        }
        if let Some(part) = self.part() {
            part.push(&delta, &[]);
        }
        let (item_id, output_index) = self.place();
        if is_summary {
            let body = Body::SummaryDelta { item_id, output_index, summary_index: 0, delta };
            self.push("response.reasoning_summary_text.delta", body);
        } else {
            let body = Body::ReasoningDelta { item_id, output_index, content_index: 0, delta };
            self.push("response.reasoning_text.delta", body);
        }
    }

    fn content(&mut self, delta: String, logprobs: Vec<TokenLogprob>) {
        if !self.is_open || !matches!(self.response.output.last(), Some(OutputItem::Message { .. }))
        {
            self.close(Status::Completed);
            self.open_message();
        }
        if let Some(part) = self.part() {
            part.push(&delta, &logprobs);
        }
        let (item_id, output_index) = self.place();
        let body = Body::TextDelta { item_id, output_index, content_index: 0, delta, logprobs };
        self.push("response.output_text.delta", body);
    }

    fn open_message(&mut self) {
        let (status, role) = (Status::InProgress, "assistant");
        self.open(OutputItem::Message { id: new_id("msg"), status, role, content: vec![] });
        self.add_part(Part::OutputText { text: String::new(), annotations: [], logprobs: vec![] });
    }

    fn call(&mut self, call_id: String, name: &str) {
        self.close(Status::Completed);
        let Origin { namespace, name, is_custom } = self.offer.origin(name);
        let status = Status::InProgress;
        self.arguments = Some(String::new());
        self.open(if is_custom {
            let (id, input) = (new_id("ctc"), String::new());
            OutputItem::CustomToolCall { id, call_id, name, namespace, input, status }
        } else {
            let (id, arguments) = (new_id("fc"), String::new());
            OutputItem::FunctionCall { id, call_id, name, namespace, arguments, status }
        });
    }

    fn call_arguments(&mut self, delta: String) {
        let Some(arguments) = &mut self.arguments else { return };
        arguments.push_str(&delta);
        // Free text is told once it is known as a whole.
        if let Some(OutputItem::FunctionCall { .. }) = self.response.output.last() {
            let (item_id, output_index) = self.place();
            let body = Body::CallDelta { item_id, output_index, delta };
            self.push("response.function_call_arguments.delta", body);
        }
    }

    fn open(&mut self, item: OutputItem) {
        self.is_open = true;
        self.response.output.push(item.clone());
        let output_index = self.response.output.len() - 1;
        self.push("response.output_item.added", Body::Item { output_index, item });
    }

    /// Opens the one part that the open item has.
    fn add_part(&mut self, part: Part) {
        let (item_id, output_index) = self.place();
        match self.response.output.last_mut() {
            Some(OutputItem::Reasoning { content: Some(parts), .. })
            | Some(OutputItem::Message { content: parts, .. }) => {
                parts.push(part.clone());
                let body = Body::Part { item_id, output_index, content_index: 0, part };
                self.push("response.content_part.added", body);
            }
            Some(OutputItem::Reasoning { content: None, summary, .. }) => {
                summary.push(part.clone());
                let body = Body::SummaryPart { item_id, output_index, summary_index: 0, part };
                self.push("response.reasoning_summary_part.added", body);
            }
            _ => {}
        }
    }

    /// The open item's part.
    fn part(&mut self) -> Option<&mut Part> {
        match self.response.output.last_mut()? {
            OutputItem::Reasoning { summary, content, .. } => {
                content.as_mut().unwrap_or(summary).last_mut()
            }
            OutputItem::Message { content, .. } => content.last_mut(),
            OutputItem::FunctionCall { .. } | OutputItem::CustomToolCall { .. } => None,
        }
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, ending: Status) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let given = self.arguments.take().unwrap_or_default();
        let (item_id, output_index) = self.place();
        let part = self.part().cloned();
        let is_sealed = self.thinking.is_sealed;
        let Some(item) = self.response.output.last_mut() else { return };
        let (mut bodies, content_index, summary_index) = (vec![], 0, 0);
        match item {
            OutputItem::Reasoning { content, encrypted_content, .. } => {
                let text = part.as_ref().map(Part::text).unwrap_or_default().to_owned();
                *encrypted_content = is_sealed.then(|| seal(&text));
                let id = || item_id.clone();
                if content.is_some() {
                    bodies.push((
                        "response.reasoning_text.done",
                        Body::ReasoningDone { item_id: id(), output_index, content_index, text },
                    ));
                    bodies.extend(part.map(|part| {
                        let kind = "response.content_part.done";
                        (kind, Body::Part { item_id: id(), output_index, content_index, part })
                    }));
                } else {
                    bodies.push((
                        "response.reasoning_summary_text.done",
                        Body::SummaryDone { item_id: id(), output_index, summary_index, text },
                    ));
                    bodies.extend(part.map(|part| {
                        let kind = "response.reasoning_summary_part.done";
                        (
                            kind,
                            Body::SummaryPart { item_id: id(), output_index, summary_index, part },
                        )
                    }));
                }
            }
            OutputItem::Message { status, .. } => {
                *status = ending;
                if let Some(part) = part {
                    let id = item_id.clone();
                    if let Part::OutputText { text, logprobs, .. } = part.clone() {
                        bodies.push((
                            "response.output_text.done",
                            Body::TextDone {
                                item_id: id,
                                output_index,
                                content_index,
                                text,
                                logprobs,
                            },
                        ));
                    }
                    bodies.push((
                        "response.content_part.done",
                        Body::Part { item_id, output_index, content_index, part },
                    ));
                }
            }
            OutputItem::FunctionCall { name, arguments, status, .. } => {
                *status = ending;
                *arguments = given;
                let (name, arguments) = (name.clone(), arguments.clone());
                bodies.push((
                    "response.function_call_arguments.done",
                    Body::ArgumentsDone { item_id, output_index, name, arguments },
                ));
            }
            OutputItem::CustomToolCall { input, status, .. } => {
                *status = ending;
                *input = custom_input(&given);
                let (input, delta) = (input.clone(), input.clone());
                bodies.push((
                    "response.custom_tool_call_input.delta",
                    Body::CallDelta { item_id: item_id.clone(), output_index, delta },
                ));
                bodies.push((
                    "response.custom_tool_call_input.done",
                    Body::InputDone { item_id, output_index, input },
                ));
            }
        }
        let item = item.clone();
        bodies.push(("response.output_item.done", Body::Item { output_index, item }));
        for (kind, body) in bodies {
            self.push(kind, body);
        }
    }

    /// Id and index of the last item.
    fn place(&self) -> (String, usize) {
        let output = &self.response.output;
        let id = output.last().map(OutputItem::id).unwrap_or_default();
        (id.to_owned(), output.len().saturating_sub(1))
    }

    fn push_response(&mut self, kind: &'static str) {
        let response = Box::new(self.response.clone());
        self.push(kind, Body::Response { response });
    }

    fn push(&mut self, kind: &'static str, body: Body) {
        let sequence_number = self.sequence;
        self.sequence += 1;
        self.events.push(Event { kind, sequence_number, body });
    }
}

/// The word for an error. Clients know OpenAI's: Codex compacts on `context_length_exceeded` and tries again
/// on `rate_limit_exceeded`.
fn error_code(error: &ApiError) -> &'static str {
    match (error.code, error.kind) {
        (Some("context_length_exceeded"), _) => "context_length_exceeded",
        (_, ErrorKind::QueueFull) => "rate_limit_exceeded",
        (_, ErrorKind::Invalid | ErrorKind::Unprocessable) => "invalid_prompt",
        _ => "server_error",
    }
}

/// A new id.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
#[path = "translator_tests.rs"]
mod tests;
