//! Reranks at servers that have a route of their own for them: Text Embeddings Inference.
//!
//! Other servers take `/v1/rerank` as it comes. API: <https://huggingface.github.io/text-embeddings-inference/>.

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Refusal;

/// Request of a rerank; values are JSON as the client wrote it.
#[derive(Debug)]
pub struct RerankRequest<'a> {
    query: &'a RawValue,
    texts: Vec<&'a RawValue>,
    /// Results that the client wants.
    pub top_n: usize,
    returns_documents: bool,
}

#[derive(Deserialize)]
struct WireRequest<'a> {
    #[serde(borrow)]
    query: &'a RawValue,
    #[serde(borrow)]
    documents: Vec<&'a RawValue>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
}

#[derive(Deserialize)]
struct WireDocument<'a> {
    #[serde(borrow)]
    text: &'a RawValue,
}

#[derive(Deserialize)]
struct TeiRank {
    index: u64,
    score: f64,
    text: Option<String>,
}

impl<'a> RerankRequest<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`] with the place of the fault.
    pub fn read(body: &'a [u8]) -> Result<RerankRequest<'a>, Refusal> {
        let wire: WireRequest<'a> = serde_json::from_slice(body).map_err(|_| {
            bad(
                "/documents",
                "expected `query`, a text, and `documents`, a list",
            )
        })?;
        let is_text = |raw: &&RawValue| raw.get().starts_with('"');
        let text = |(at, document): (usize, &&'a RawValue)| {
            let read = || serde_json::from_str::<WireDocument<'a>>(document.get()).ok();
            let text = match is_text(document) {
                true => Some(*document),
                false => read().map(|document| document.text).filter(is_text),
            };
            text.ok_or_else(|| bad(&format!("/documents/{at}"), "expected a text"))
        };
        let texts: Result<Vec<_>, Refusal> = wire.documents.iter().enumerate().map(text).collect();
        Ok(RerankRequest {
            query: wire.query,
            texts: texts?,
            top_n: wire.top_n.unwrap_or(usize::MAX),
            returns_documents: wire.return_documents.unwrap_or(false),
        })
    }

    /// Returns the body for Text Embeddings Inference.
    pub fn to_tei(&self) -> String {
        let texts: Vec<&str> = self.texts.iter().map(|text| text.get()).collect();
        format!(
            r#"{{"query":{},"texts":[{}],"return_text":{}}}"#,
            self.query.get(),
            texts.join(","),
            self.returns_documents
        )
    }
}

/// Appends the answer that clients read, made of that of Text Embeddings Inference; none where that is another value.
/// `input_tokens` is what the server has counted.
pub fn write_rerank(
    body: &[u8],
    (model, top_n): (&str, usize),
    input_tokens: u64,
    out: &mut BytesMut,
) -> Option<()> {
    let mut ranks: Vec<TeiRank> = serde_json::from_slice(body).ok()?;
    ranks.sort_by(|one, other| other.score.total_cmp(&one.score));
    let result = |rank: TeiRank| {
        let mut result = serde_json::json!({ "index": rank.index, "relevance_score": rank.score });
        if let Some(text) = rank.text {
            result["document"] = serde_json::json!({ "text": text });
        }
        result
    };
    let results: Vec<Value> = ranks.into_iter().take(top_n).map(result).collect();
    let answer = serde_json::json!({
        "object": "list", "model": model, "results": results,
        "usage": { "prompt_tokens": input_tokens, "total_tokens": input_tokens },
    });
    out.extend_from_slice(answer.to_string().as_bytes());
    Some(())
}

fn bad(pointer: &str, message: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: pointer.into(),
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_texts_alone_or_in_objects() {
        let body = json!({ "model": "m", "query": "q", "documents": ["a", { "text": "b" }], "top_n": 1,
                           "return_documents": true });
        let body = body.to_string();
        let request = RerankRequest::read(body.as_bytes()).unwrap();
        let sent: Value = serde_json::from_str(&request.to_tei()).unwrap();
        assert_eq!(
            sent,
            json!({ "query": "q", "texts": ["a", "b"], "return_text": true })
        );
        for bad in [
            json!({ "query": "q", "documents": ["a", 7] }),
            json!({ "query": "q" }),
        ] {
            assert!(
                RerankRequest::read(bad.to_string().as_bytes()).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn ranks_come_best_first_and_as_many_as_are_wanted() {
        let body = br#"[{"index":0,"score":0.1},{"index":2,"score":0.9,"text":"c"},{"index":1,"score":0.5}]"#;
        let mut out = BytesMut::new();
        write_rerank(body, ("m", 2), 12, &mut out).unwrap();
        let answer: Value = serde_json::from_slice(&out).unwrap();
        let expected = json!([{ "index": 2, "relevance_score": 0.9, "document": { "text": "c" } },
                              { "index": 1, "relevance_score": 0.5 }]);
        assert_eq!(answer["results"], expected);
        assert_eq!(answer["usage"]["total_tokens"], 12);
        assert!(write_rerank(b"{}", ("m", 2), 0, &mut out).is_none());
    }
}
