//! Request to the servers of one model, in the form of the server that is asked.
//!
//! Not sent here. The form is made before the request waits, so that input the servers cannot take is refused at
//! once. It is made anew only for a server with another name of the model or other usage reports.

use std::borrow::Cow;
use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::open_inference::JSON_BYTES_HEADER;
use infergate_core::api::{Call, Operation};
use infergate_core::model::Task;
use infergate_core::routing::PathOwner;
use infergate_core::trace_context::TRACEPARENT;

use super::chat_form;
use crate::pipeline::context::RequestContext;
use crate::pipeline::origin::Origin;
use crate::pipeline::task::PreparedRequest;
use crate::plugin::TaskSession;
use crate::state::LARGE_BYTES;
use crate::state::header_filter::PassedHeaders;
use crate::telemetry::off_the_worker;
use crate::upstream::{
    BodyRest, ModelRuntime, OutboundRequest, ResponseTransformer, Target, UpstreamRequest,
    path_segment,
};

/// Content type of a body where the request names none.
const JSON: &str = "application/json";

/// Request to the servers of one model.
pub struct ModelRequest {
    prepared: PreparedRequest,
    headers: PassedHeaders,
    /// Form for the latest server, and the model name in it.
    encoded: UpstreamRequest,
    encoded_model: Arc<str>,
    /// What follows the encoded body, as it comes.
    rest: Option<BodyRest>,
}

impl ModelRequest {
    /// Encodes the request for the model's first endpoint.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`].
    pub fn new(
        model: &ModelRuntime,
        prepared: PreparedRequest,
        passed: &PassedHeaders,
        ctx: &RequestContext,
    ) -> Result<ModelRequest, Refusal> {
        let first = model.spec.endpoints.first();
        let name = first.and_then(|endpoint| endpoint.backend_model.clone());
        let name = name.unwrap_or_else(|| model.spec.id.as_str().into());
        let encoded = encode(model, &prepared, &name)?;
        let content_type = encoded.content_type.as_deref().unwrap_or(JSON);
        let own = [
            ("content-type", content_type),
            ("x-request-id", &**ctx.request_id()),
        ];
        let is_upgrade = prepared.call.operation == Operation::WebSocket;
        // Without a body there is no type of it.
        let headers = passed.with_lines(&own[usize::from(is_upgrade)..]);
        let json_bytes = prepared.call.tensors.as_ref().and_then(|it| it.json_bytes);
        let headers = match json_bytes {
            Some(bytes) => {
                let bytes = bytes.to_string();
                headers.with_lines(&[(JSON_BYTES_HEADER, bytes.as_str())])
            }
            None => headers,
        };
        Ok(ModelRequest {
            prepared,
            headers,
            encoded,
            encoded_model: name,
            rest: ctx.arriving.as_ref().map(|body| body.rest().clone()),
        })
    }

    /// Returns the request as the model's task has made it.
    pub fn call(&self) -> &Call {
        &self.prepared.call
    }

    /// Returns the adapter that the request names, as its servers report it.
    pub fn lora(&self) -> Option<Cow<'_, str>> {
        match &self.prepared.adapter {
            Some(name) => Some(Cow::Borrowed(name)),
            None => self.prepared.call.lora(),
        }
    }

    /// Returns whether the request asks for a stream of events.
    pub fn is_streaming(&self) -> bool {
        self.encoded.streams
    }

    /// Returns whether the request opens a WebSocket.
    pub fn is_upgrade(&self) -> bool {
        self.prepared.call.operation == Operation::WebSocket
    }

    /// Returns whether a server has had what no other can get: a piece of a body that is not kept.
    pub fn is_partly_gone(&self) -> bool {
        self.rest.as_ref().is_some_and(BodyRest::is_taken)
    }

    /// Returns the bytes held beside the client's own body.
    pub fn copied_bytes(&self) -> u64 {
        let (own, encoded) = (&self.prepared.call.body, &self.encoded.body);
        let copied = match own.as_ptr() == encoded.as_ptr() {
            true => 0,
            false => encoded.len() as u64,
        };
        self.prepared.copied_bytes + copied
    }

    /// Encodes the request for `target`, where the present form is not for such a server.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`].
    pub fn encode_for(&mut self, model: &ModelRuntime, target: &Target) -> Result<(), Refusal> {
        let continuous_usage = model.has_continuous_usage(&target.url);
        let asked = &mut self.prepared.call.continuous_usage;
        let changed = std::mem::replace(asked, continuous_usage) != continuous_usage;
        if changed || self.encoded_model != target.backend_model {
            self.encoded_model = Arc::clone(&target.backend_model);
            self.encoded = encode(model, &self.prepared, &self.encoded_model)?;
        }
        Ok(())
    }

    /// Names the run of the next attempt; returns its path, of servers that know runs by name. States of two attempts
    /// never mix.
    pub fn name_run(&mut self, model: &ModelRuntime, ctx: &RequestContext) -> Option<&str> {
        if !model.backend.names_runs() {
            return None;
        }
        let mut name = match ctx.origin() {
            Origin::Job(job) => job.run_name(),
            Origin::Client | Origin::Peer => ctx.request_id().to_string(),
        };
        if ctx.attempts > 1 {
            name.push_str(&format!("-r{}", ctx.attempts));
        }
        self.encoded.path = format!("/predictions/{}", path_segment(&name)).into();
        Some(&self.encoded.path)
    }

    /// Returns the header lines for a server, with the trace context of a request that is recorded.
    pub fn headers(&self, is_external: bool, ctx: &RequestContext) -> Cow<'_, [u8]> {
        let lines = self.headers.towards(is_external);
        match ctx.trace.outgoing_context() {
            Some(context) => {
                let own = format!("{TRACEPARENT}: {context}\r\n");
                Cow::Owned([lines, own.as_bytes()].concat())
            }
            None => Cow::Borrowed(lines),
        }
    }

    /// Returns the request as it is sent, on a new connection where `fresh`.
    pub fn outbound<'a>(
        &'a self,
        model: &ModelRuntime,
        headers: &'a [u8],
        fresh: bool,
    ) -> OutboundRequest<'a> {
        let is_upgrade = self.is_upgrade();
        OutboundRequest {
            method: match is_upgrade {
                true => "GET",
                false => model.backend.method(),
            },
            path: &self.encoded.path,
            headers,
            body: &self.encoded.body,
            // On a new connection nothing is sent twice.
            fresh: fresh || is_upgrade || self.rest.is_some(),
            is_upgrade,
            rest: self.rest.as_ref(),
        }
    }

    /// Returns the owner of the request's path.
    pub fn path_owner(&self, model: &ModelRuntime) -> PathOwner {
        let spec = &model.spec;
        if model.backend.names_runs() {
            return PathOwner::Gateway;
        }
        let is_plain = match &self.prepared.call.tensors {
            // The version is the client's word.
            Some(tensors) => tensors.version.is_some(),
            None if self.prepared.call.passed_api().is_some() => false,
            None => model.backend.uses_task_path() || spec.task == Task::DumbPipe,
        };
        match is_plain || self.prepared.path.is_some() {
            true => PathOwner::Operator,
            false => PathOwner::Gateway,
        }
    }

    /// Returns the reader of the response, with the model's task for it.
    pub fn response_transformer(
        &self,
        model: &ModelRuntime,
        task: Option<TaskSession>,
    ) -> ResponseTransformer {
        let (spec, call) = (&model.spec, &self.prepared.call);
        let mut decoder = model.backend.decoder(call, spec.task);
        if chat_form::is_completion(&spec.chat, call, &self.encoded) {
            decoder = decoder.with_chat_form(call);
        }
        decoder.for_model(spec, task).with_model_name(call, spec)
    }
}

/// Encodes the request for a server that calls the model `name`.
fn encode(
    model: &ModelRuntime,
    prepared: &PreparedRequest,
    name: &str,
) -> Result<UpstreamRequest, Refusal> {
    let name = model.backend.served_name(name, prepared.adapter.as_deref());
    let encoded = model
        .backend
        .encode(&prepared.call, model.spec.task, name)?;
    let encoded = match model.spec.chat.is_plain() {
        true => encoded,
        false => {
            let is_large = encoded.body.len() >= LARGE_BYTES;
            off_the_worker(is_large, || chat_form::apply(&model.spec.chat, encoded))?
        }
    };
    Ok(match &prepared.path {
        Some(path) => UpstreamRequest {
            path: path.clone().into(),
            ..encoded
        },
        None => encoded,
    })
}
