//! URLs of files: how they are written, and how they are found in the input of a job.
//!
//! Not the signatures in them.

use super::file_id::FileId;

/// Path of the files.
const PATH: &str = "/v1/files/";

/// Returns the URL that shows a file.
pub fn file_url(base_url: &str, id: FileId) -> String {
    format!("{base_url}{PATH}{id}")
}

/// Returns the file that a URL of any host shows or downloads, by its path. Ids are random: another server's URL names
/// none of ours.
pub fn file_in_url(url: &str) -> Option<FileId> {
    let rest = url
        .strip_prefix("https://")
        .or(url.strip_prefix("http://"))?;
    let path = &rest[rest.find('/')?..];
    let path = path.split_once(['?', '#']).map_or(path, |(path, _)| path);
    // A gateway may be reached below a path of its own.
    let (_, name) = path.rsplit_once(PATH)?;
    name.strip_suffix("/download").unwrap_or(name).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_in_both_of_its_urls() {
        let id = FileId::random();
        let url = file_url("https://h:8/x", id);
        assert_eq!(file_in_url(&url), Some(id));
        assert_eq!(
            file_in_url(&format!("{url}/download?owner=a&b=c")),
            Some(id)
        );
        for other in [
            "https://h/v1/files/a",
            "v1/files/",
            "",
            &format!("{url}/other"),
            &format!("ftp://h/v1/files/{id}"),
        ] {
            assert_eq!(file_in_url(other), None, "{other}");
        }
    }
}
