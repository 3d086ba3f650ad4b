//! Moderation of inputs: a service of the operator judges what a job would run.
//!
//! Not a plugin, and not a receiver of users: its URL stands in the configuration, and goes where that says. One
//! request on a connection of its own, bounded by `timeout_ms`.

use std::time::Duration;

use bytes::Bytes;
use infergate_core::job::JobDefinition;
use infergate_core::model::{EndpointSpec, ModerationFailure, ModerationSpec};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::upstream::{ConnectTimings, HttpClient, OutboundRequest, Target};

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Input of a job as the service gets it.
#[derive(Serialize)]
struct ModerationRequest<'a> {
    id: &'a str,
    account: &'a str,
    model: &'a str,
    input: &'a RawValue,
}

/// Answer of the service; other members are ignored.
#[derive(Deserialize)]
struct ModerationAnswer {
    flagged: bool,
}

/// Client of the services.
#[derive(Default)]
pub struct Moderator {
    http: HttpClient,
}

impl Moderator {
    /// Returns whether a job may run with this input. Waits for at most `timeout_ms`.
    pub async fn allows(
        &self,
        spec: &ModerationSpec,
        definition: &JobDefinition,
        input: &RawValue,
    ) -> bool {
        let limit = Duration::from_millis(spec.timeout_ms);
        let asked = timeout(limit, self.ask(spec, definition, input)).await;
        match asked.unwrap_or(Err("timeout")) {
            Ok(is_flagged) => !is_flagged,
            Err(fault) => {
                let job = definition.id;
                tracing::warn!(%job, fault, "the input of a job could not be moderated");
                spec.on_failure == ModerationFailure::Allow
            }
        }
    }

    /// Returns whether the input was flagged.
    async fn ask(
        &self,
        spec: &ModerationSpec,
        definition: &JobDefinition,
        input: &RawValue,
    ) -> Result<bool, &'static str> {
        let (server, path) = split(&spec.url);
        let api = EndpointSpec {
            url: server.into(),
            ..EndpointSpec::default()
        };
        let target = Target::new(&api, "", Duration::from_millis(spec.timeout_ms));
        let target = target.ok_or("the url is none")?;
        let body = ModerationRequest {
            id: definition.id.as_str(),
            account: definition.account.as_str(),
            model: definition.model.as_str(),
            input,
        };
        let body = Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
        let outbound = OutboundRequest {
            method: "POST",
            path,
            headers: b"content-type: application/json\r\naccept: application/json\r\nconnection: close\r\n",
            body: &body,
            fresh: true,
            is_upgrade: false,
            rest: None,
        };
        let mut timings = ConnectTimings::default();
        let sent = self.http.send(&target, outbound, &mut timings).await;
        let mut answer = sent.map_err(|error| error.cause())?;
        if !(200..300).contains(&answer.head().status.as_u16()) {
            return Err("the status of the answer is no success");
        }
        let mut read = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|_| "the answer broke off")? {
            if read.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err("the answer is too large");
            }
            read.extend_from_slice(&chunk);
        }
        let answer: ModerationAnswer =
            serde_json::from_slice(&read).map_err(|_| "the answer has no `flagged`")?;
        Ok(answer.flagged)
    }
}

/// Splits a URL into its server and the path.
fn split(url: &str) -> (&str, &str) {
    let authority = url.find("://").map_or(0, |at| at + 3);
    match url[authority..].find('/') {
        Some(at) => url.split_at(authority + at),
        None => (url, "/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_its_server_and_its_path() {
        let url = "https://m.example:8443/v1/check";
        assert_eq!(split(url), ("https://m.example:8443", "/v1/check"));
        assert_eq!(split("http://m.example"), ("http://m.example", "/"));
    }
}
