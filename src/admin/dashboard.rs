//! `GET /dashboard`: a page for people over the other paths of this listener.
//!
//! Not a source of values: its script asks `/state`, `/gpu`, `/accounts`, `/jobs/queues` and `/explain` as any tool may. The
//! page is one file without foreign parts, and its policy lets it run nothing but its own script.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The page.
pub const PAGE: &str = include_str!("dashboard.html");

/// Value of `Content-Security-Policy`: the page's own style and script by their digests, requests to this listener, and
/// an icon in the page itself.
///
/// Specification: <https://www.w3.org/TR/CSP3/>.
pub static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (style, script) = (digest_of("style"), digest_of("script"));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// Returns the digest of what stands in the page's one element of this name.
fn digest_of(element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let content = PAGE
        .split_once(&open)
        .and_then(|(_, rest)| rest.split_once(&close));
    let (content, _) = content.expect("the page has both elements: a test looks at them");
    STANDARD.encode(Sha256::digest(content))
}

/// Returns whether a request for `/` comes from a browser's address bar, by the types that it accepts.
pub fn is_wanted(accept: Option<&[u8]>) -> bool {
    let accept = accept.map(String::from_utf8_lossy).unwrap_or_default();
    accept.contains("text/html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_style_and_one_script_and_nothing_from_elsewhere() {
        for element in ["<style>", "</style>", "<script>", "</script>"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        assert_eq!(POLICY.matches("sha256-").count(), 2);
        let addresses = PAGE
            .split("http")
            .skip(1)
            .filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        for rest in addresses {
            // The name of a vocabulary, which nothing fetches.
            assert!(rest.starts_with("://www.w3.org/2000/svg"), "http{rest:.60}");
        }
        // The policy bars what these would do, and the page does not try.
        for barred in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            " onclick",
            "style=\"",
        ] {
            assert!(!PAGE.contains(barred), "{barred}");
        }
    }

    #[test]
    fn a_browser_wants_the_page_and_a_tool_the_text() {
        assert!(is_wanted(Some(
            b"text/html,application/xhtml+xml,*/*;q=0.8"
        )));
        assert!(!is_wanted(Some(b"*/*")));
        assert!(!is_wanted(None));
    }
}
