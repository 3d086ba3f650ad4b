//! Responses of the admin listener: a status, a type and a body, and how they are sent.
//!
//! Paths and methods are in `listener`.

use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use serde::Serialize;
use serde_json::json;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
pub const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A response before it is HTTP.
pub struct AdminResponse {
    pub status: u16,
    pub content_type: &'static str,
    /// The methods the path takes, on a 405.
    pub allow: Option<&'static str>,
    /// Content-Security-Policy of a page.
    pub policy: Option<&'static str>,
    pub body: Vec<u8>,
}

impl AdminResponse {
    pub fn text(status: u16, body: impl Into<Vec<u8>>) -> AdminResponse {
        AdminResponse {
            status,
            content_type: TEXT,
            allow: None,
            policy: None,
            body: body.into(),
        }
    }

    pub fn json(status: u16, body: &impl Serialize) -> AdminResponse {
        match serde_json::to_vec_pretty(body) {
            Ok(mut body) => {
                body.push(b'\n');
                AdminResponse {
                    status,
                    content_type: JSON,
                    allow: None,
                    policy: None,
                    body,
                }
            }
            Err(problem) => {
                tracing::error!(%problem, "cannot render an admin answer");
                AdminResponse::text(500, "internal error\n")
            }
        }
    }

    /// A page that runs nothing but what `policy` allows.
    pub fn page(body: &str, policy: &'static str) -> AdminResponse {
        AdminResponse {
            content_type: HTML,
            policy: Some(policy),
            ..AdminResponse::text(200, body)
        }
    }

    pub fn error(status: u16, message: &str) -> AdminResponse {
        AdminResponse::json(status, &json!({ "error": message }))
    }
}

pub async fn send(session: &mut ServerSession, answer: AdminResponse) -> pingora_error::Result<()> {
    let mut head = ResponseHeader::build(answer.status, Some(7))?;
    head.insert_header(http::header::CONTENT_TYPE, answer.content_type)?;
    head.insert_header(http::header::CONTENT_LENGTH, answer.body.len())?;
    head.insert_header(http::header::CACHE_CONTROL, "no-store")?;
    if let Some(allow) = answer.allow {
        head.insert_header(http::header::ALLOW, allow)?;
    }
    if let Some(policy) = answer.policy {
        head.insert_header(http::header::CONTENT_SECURITY_POLICY, policy)?;
        head.insert_header(http::header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
        head.insert_header(http::header::REFERRER_POLICY, "no-referrer")?;
    }
    session.write_response_header(Box::new(head)).await?;
    session.write_response_body(answer.body.into(), true).await
}
