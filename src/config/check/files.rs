//! `files`: one store, and a key that is whole.
//!
//! Stores are not asked; what they refuse shows while running. No secret is repeated.

use crate::config::document::Cursor;
use crate::config::problem::Problems;
use crate::upstream::check_url;

pub fn check(root: &Cursor<'_>, problems: &mut Problems, warnings: &mut Problems) {
    let Some(files) = root.key("files") else {
        return;
    };
    let Some(s3) = files.key("s3") else { return };
    if files.key("local").is_some() {
        problems.add(s3.problem("files are in one store: keep `local` or `s3`"));
    }
    if root.key("jobs").is_none() {
        warnings.add(s3.problem("is not used: files are kept only beside `jobs`"));
    }
    if let Some(endpoint) = s3.key("endpoint")
        && let Some(text) = endpoint.text()
        && let Err(fault) = check_url(text)
    {
        problems.add(endpoint.problem(fault));
    }
    let keys = ["access_key", "secret_key"];
    for (key, other) in [(keys[0], keys[1]), (keys[1], keys[0])] {
        if let Some(given) = s3.key(key) {
            if given.text() == Some("") {
                problems.add(given.problem("must not be empty"));
            }
            if s3.key(other).is_none() {
                problems.add(given.problem(format!("goes with `{other}`, which is missing")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    const BASE: &str = r#"
listen: { clients: [{ address: "127.0.0.1:8080" }] }
anonymous: allow
jobs: {}
"#;

    fn faults(rest: &str) -> Vec<String> {
        match parse(&format!("{BASE}{rest}\n"), &|_: &str| None) {
            Ok(_) => Vec::new(),
            Err(found) => found.iter().map(|one| one.path.to_string()).collect(),
        }
    }

    #[test]
    fn a_store_is_one_and_has_a_whole_key() {
        let none: [&str; 0] = [];
        assert_eq!(faults("files: { s3: { bucket: b } }"), none);
        assert_eq!(faults("files: { s3: {} }"), ["files.s3.bucket"]);
        let both = "files: { local: { dir: x }, s3: { bucket: b } }";
        assert_eq!(faults(both), ["files.s3"]);
        let half = "files: { s3: { bucket: b, access_key: a } }";
        assert_eq!(faults(half), ["files.s3.access_key"]);
        let half = "files: { s3: { bucket: b, secret_key: a } }";
        assert_eq!(faults(half), ["files.s3.secret_key"]);
        let url = "files: { s3: { bucket: b, endpoint: minio } }";
        assert_eq!(faults(url), ["files.s3.endpoint"]);
    }

    #[test]
    fn keys_of_a_store_are_shown_as_digests() {
        let text = "files: { s3: { bucket: b, access_key: AKID01234, secret_key: hidden-0123 } }";
        let config = parse(&format!("{BASE}{text}\n"), &|_: &str| None)
            .unwrap()
            .config;
        let shown = crate::config::redacted(&config, std::path::Path::new("/"), "salt");
        assert!(crate::config::has_secret(
            &shown["files"]["s3"]["secret_key"]
        ));
        assert!(!shown.to_string().contains("0123"));
        assert!(!format!("{:?}", config.files).contains("hidden"));
    }

    #[test]
    fn plain_urls_of_the_callback_listener_are_private() {
        for (url, expected) in [
            ("http://10.0.0.1:8085", 0),
            ("http://[fd00::1]:8085", 0),
            ("http://gateway.internal:8085", 0),
            ("https://8.8.8.8", 0),
            ("http://8.8.8.8:8085", 1),
            ("8.8.8.8", 1),
        ] {
            let text = BASE.replace(
                "8080\" }]",
                &format!("8080\" }}], callbacks: {{ address: \"127.0.0.1:1\", url: \"{url}\" }}"),
            );
            let found = parse(&text, &|_: &str| None);
            assert_eq!(
                found.err().map_or(0, |found| found.len()),
                expected,
                "{url}"
            );
        }
    }
}
