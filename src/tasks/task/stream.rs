//! Events of a text stream, each brought to `{"response": …}`.
//!
//! Known are the events of Text Generation Inference (`token`), of OpenAI's chat and completions
//! (`choices`), and plain `response` and `text`. Any other event passes unchanged, errors above all.
//! Fragments of tool calls are kept in the state, [`STATE_MAX_BYTES`] at most, until their choice is
//! over; counts of tokens are metrics.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::generation::{GeneratedContent, TOOL_CALLS_MAX, ToolCall, read, write};
use super::result::usage_metrics;
use super::values::{EventEdit, STATE_MAX_BYTES, StreamEvent, StreamResult};
use crate::json::{member, parse_value};

const DONE: &[u8] = b"[DONE]";

/// State kept from one event to the next.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StreamState {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calls: Vec<ToolCall>,
    /// The end mark was held back for the tool calls and follows on close.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    done: bool,
}

impl StreamState {
    fn read(state: &[u8]) -> Result<StreamState, String> {
        if state.is_empty() {
            return Ok(StreamState::default());
        }
        serde_json::from_slice(state).map_err(|_| "the state is not of this task".to_owned())
    }

    fn write(&self) -> Result<Vec<u8>, String> {
        if self.calls.is_empty() && !self.done {
            return Ok(Vec::new());
        }
        let state = serde_json::to_vec(self).map_err(|_| "the state cannot be written")?;
        if state.len() > STATE_MAX_BYTES {
            return Err("the tool calls are longer than the state of a stream".to_owned());
        }
        Ok(state)
    }

    fn add(&mut self, fragments: Vec<(usize, ToolCall)>) -> Result<(), String> {
        for (index, fragment) in fragments {
            if index >= TOOL_CALLS_MAX {
                return Err("too many tool calls".to_owned());
            }
            if self.calls.len() <= index {
                self.calls.resize(index + 1, ToolCall::default());
            }
            let call = &mut self.calls[index];
            call.id = fragment.id.or(call.id.take());
            call.name.push_str(&fragment.name);
            call.arguments.push_str(&fragment.arguments);
        }
        Ok(())
    }
}

/// Converts the next events.
pub(super) fn push(state: &[u8], events: &[StreamEvent]) -> Result<StreamResult, String> {
    let mut kept = StreamState::read(state)?;
    let mut step = StreamResult::default();
    for event in events {
        let out = convert_event(event, &mut kept, &mut step.metrics)?;
        step.events.push(out);
    }
    step.state = kept.write()?;
    Ok(step)
}

/// Ends the stream. Tool calls of an interrupted stream are not sent: they may be incomplete.
pub(super) fn close(state: &[u8], cut: bool) -> Result<StreamResult, String> {
    let kept = StreamState::read(state)?;
    let mut step = StreamResult::default();
    if !cut && !kept.calls.is_empty() {
        step.events.push(delta_event("\"\"", &kept.calls, None));
    }
    if !cut && kept.done {
        let data = DONE.to_vec();
        step.events
            .push(EventEdit::Replace(StreamEvent { name: None, data }));
    }
    Ok(step)
}

fn convert_event(
    event: &StreamEvent,
    kept: &mut StreamState,
    metrics: &mut Vec<(String, f64)>,
) -> Result<EventEdit, String> {
    if event.data == DONE {
        if kept.calls.is_empty() {
            return Ok(EventEdit::Keep);
        }
        kept.done = true;
        let calls = core::mem::take(&mut kept.calls);
        return Ok(delta_event("\"\"", &calls, None));
    }
    let json = core::str::from_utf8(&event.data).unwrap_or("").trim();
    let is_result = parse_value(json).is_some() && member(json, "error").is_none();
    let Some(content) = is_result.then(|| read(json)).flatten() else {
        return Ok(EventEdit::Keep);
    };
    let GeneratedContent {
        text,
        tool_calls,
        usage,
        finished,
    } = content;
    // Each report is the total so far: the largest stands for all.
    for (name, count) in usage_metrics(usage.as_deref()) {
        match metrics.iter_mut().find(|(known, _)| *known == name) {
            Some((_, largest)) => *largest = largest.max(count),
            None => metrics.push((name, count)),
        }
    }
    kept.add(tool_calls)?;
    let mut calls = Vec::new();
    if finished {
        calls = core::mem::take(&mut kept.calls);
    }
    let text = text.unwrap_or_else(|| "\"\"".to_owned());
    if text == "\"\"" && calls.is_empty() && usage.is_none() {
        return Ok(EventEdit::Drop);
    }
    Ok(delta_event(
        &text.replace(['\n', '\r'], " "),
        &calls,
        usage.as_deref(),
    ))
}

fn delta_event(text: &str, calls: &[ToolCall], usage: Option<&str>) -> EventEdit {
    EventEdit::Replace(StreamEvent {
        name: None,
        data: write(text, calls, usage).into_bytes(),
    })
}
