//! The way a path takes through symbolic links: every directory in which a change of one name can
//! change what the path leads to.
//!
//! Watching is done by the parent module. In Kubernetes the way is `config.yaml →
//! ..data/config.yaml`, then `..data → ..2026_11_20`, then the file; an update replaces `..data`.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// As many links as Linux itself follows.
const LINKS_MAX: usize = 40;

/// Directories and the name that matters in each, with the directory's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SymlinkTrail {
    steps: Vec<TrailStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TrailStep {
    directory: PathBuf,
    name: OsString,
    /// A directory that was replaced by another of the same name must be watched anew.
    identity: Option<(u64, u64)>,
}

impl SymlinkTrail {
    /// The way of the absolute path `path`, as it is now. Links that lead nowhere end it.
    pub fn of(path: &Path) -> SymlinkTrail {
        let mut trail = SymlinkTrail::default();
        let mut here = PathBuf::new();
        let mut rest: Vec<OsString> = components(path);
        rest.reverse();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            let target = std::fs::read_link(&next).ok().filter(|_| links < LINKS_MAX);
            if target.is_some() || rest.is_empty() {
                trail.add(&here, &name);
            }
            match target {
                Some(target) => {
                    links += 1;
                    if target.is_absolute() {
                        here = PathBuf::new();
                    }
                    rest.extend(components(&target).into_iter().rev());
                }
                None => here = next,
            }
        }
        trail
    }

    fn add(&mut self, directory: &Path, name: &OsString) {
        let identity = identity(directory);
        self.push(TrailStep {
            directory: directory.to_owned(),
            name: name.clone(),
            identity,
        });
    }

    fn push(&mut self, step: TrailStep) {
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// Adds the way to another file.
    pub fn join(&mut self, other: SymlinkTrail) {
        for step in other.steps {
            self.push(step);
        }
    }

    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let first = |(at, step): &(usize, &TrailStep)| {
            !self.steps[..*at]
                .iter()
                .any(|earlier| earlier.directory == step.directory)
        };
        self.steps
            .iter()
            .enumerate()
            .filter(first)
            .map(|(_, step)| &*step.directory)
    }

    pub fn names(&self) -> Vec<OsString> {
        self.steps.iter().map(|step| step.name.clone()).collect()
    }

    /// Returns true when the very directory that is now at `directory` is on this way.
    pub fn contains(&self, directory: &Path) -> bool {
        let identity = identity(directory);
        self.steps
            .iter()
            .any(|step| step.directory == directory && step.identity == identity)
    }
}

fn components(path: &Path) -> Vec<OsString> {
    path.components()
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

#[cfg(unix)]
fn identity(directory: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(directory).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(_directory: &Path) -> Option<(u64, u64)> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_plain_file_is_watched_in_its_own_directory() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let trail = SymlinkTrail::of(&dir.join("infergate.yaml"));
        assert_eq!(trail.directories().collect::<Vec<_>>(), [&*dir]);
        assert_eq!(trail.names(), ["infergate.yaml"]);
    }

    #[test]
    fn every_link_on_the_way_is_watched_where_it_stands() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let mount = root.join("mount");
        std::fs::create_dir_all(mount.join("..v1")).unwrap();
        std::fs::write(mount.join("..v1/config.yaml"), "x").unwrap();
        symlink("..v1", mount.join("..data")).unwrap();
        symlink("..data/config.yaml", mount.join("config.yaml")).unwrap();
        symlink(mount.join("config.yaml"), root.join("infergate.yaml")).unwrap();

        let trail = SymlinkTrail::of(&root.join("infergate.yaml"));

        let v1 = mount.join("..v1");
        assert_eq!(
            trail.directories().collect::<Vec<_>>(),
            [&*root, &*mount, &*v1]
        );
        assert_eq!(
            trail.names(),
            ["infergate.yaml", "config.yaml", "..data", "config.yaml"]
        );
    }

    #[test]
    fn links_in_a_circle_end() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        let trail = SymlinkTrail::of(&dir.path().join("a"));
        assert!(trail.names().len() <= 3, "{trail:?}");
    }
}
