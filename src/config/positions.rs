//! Positions of the keys of a file that loaded, for problems that are found later.
//!
//! Positions are kept below `gpu`, `listen`, `models` and `plugins` only: loading certificates and plugins, and the check of
//! the GPU host, may find fault with those keys. Bounds: those of the file.

use std::collections::HashMap;

use super::document::{DocumentNode, NodeData};
use super::problem::{FilePosition, Problem, path_of_item, path_of_key};

/// Lines of keys, by their paths.
#[derive(Clone, Debug, Default)]
pub struct KeyPositions {
    by_path: HashMap<String, FilePosition>,
}

impl KeyPositions {
    pub(super) fn of(root: &DocumentNode) -> KeyPositions {
        let mut places = KeyPositions::default();
        let NodeData::Map(entries) = &root.data else {
            return places;
        };
        for entry in entries {
            if ["gpu", "listen", "models", "plugins"].contains(&entry.key.as_str()) {
                places.add(entry.key.clone(), entry.place, &entry.value);
            }
        }
        places
    }

    fn add(&mut self, path: String, place: FilePosition, node: &DocumentNode) {
        match &node.data {
            NodeData::Map(entries) => {
                for entry in entries {
                    self.add(path_of_key(&path, &entry.key), entry.place, &entry.value);
                }
            }
            NodeData::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.add(path_of_item(&path, index), item.place, item);
                }
            }
            _ => {}
        }
        self.by_path.insert(path, place);
    }

    /// A finding at the key `path`. A key that the file leaves out is where its parent stands.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        let mut above = path;
        loop {
            if let Some(place) = self.by_path.get(above) {
                return Problem::new(path, *place, message);
            }
            match above.rfind(['.', '[']) {
                Some(end) => above = &above[..end],
                None => return Problem::new(path, FilePosition::default(), message),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{QUICKSTART, parse};

    #[test]
    fn a_key_has_its_line_and_one_that_is_left_out_that_of_what_encloses_it() {
        let loaded = parse(QUICKSTART, &|_| None).unwrap();
        let line = |path: &str| loaded.places.problem(path, "x").line;
        let model = line("models[0]");
        assert!(model > 1);
        assert!(line("models[0].task") > model);
        assert_eq!(line("models[0].queue.capacity"), model);
        assert!(line("models[0].endpoints[1].url") > line("models[0].task"));
        assert_eq!(line("nothing[3].there"), 0);
    }
}
