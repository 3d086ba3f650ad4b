//! The files of a new project: templates with a name, a world and a language put in.
//!
//! Writes nothing. The SDK's sources are the very files of plugins/sdk, and those of the logic that it calls
//! are the files of src/tasks. Only the place of the WIT files is another one.

use infergate_core::model::Task;
use infergate_core::task::BuiltinTask;

use crate::plugin::World;

/// A template.
macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../templates/", $path))
    };
}

/// A source file of the SDK.
macro_rules! sdk {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../plugins/sdk/src/", $name)))),*]
    };
}

/// A source file of the logic behind the SDK.
macro_rules! tasks {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../tasks/", $name)))),*]
    };
}

/// A file of a project: its path and its text.
pub type ProjectFile = (String, String);

/// A template's path in the project, and its text.
type TemplateFile = (&'static str, &'static str);

const SDK: &[TemplateFile] = sdk!(
    "bindings.rs",
    "export.rs",
    "host.rs",
    "json.rs",
    "lib.rs",
    "price.rs",
    "pricing.rs",
    "rank.rs",
    "settings.rs",
    "slot.rs",
    "standard.rs",
);

const TASKS: &[TemplateFile] = tasks!(
    "base64.rs",
    "estimate.rs",
    "json.rs",
    "lib.rs",
    "policy/affinity.rs",
    "policy/flow.rs",
    "policy/forced.rs",
    "policy/latency.rs",
    "policy/mod.rs",
    "policy/order.rs",
    "policy/random.rs",
    "policy/settings.rs",
    "policy/splitmix.rs",
    "policy/tests.rs",
    "policy/values.rs",
    "price.rs",
    "task/embeddings.rs",
    "task/generation.rs",
    "task/image.rs",
    "task/input.rs",
    "task/labels.rs",
    "task/mod.rs",
    "task/result.rs",
    "task/single_text.rs",
    "task/speech.rs",
    "task/standard.rs",
    "task/stream.rs",
    "task/tests.rs",
    "task/values.rs",
);

/// Text in the SDK of the repository, and in that of a project.
const WIT_PLACES: (&str, &str) = (
    "path: [\"../../wit/host\", \"../../wit/plugin\"]",
    "path: [\"../../wit\"]",
);

const RUST_SETUP: &str = "      - run: rustup target add wasm32-unknown-unknown";
const JAVASCRIPT_SETUP: &str = "      - uses: actions/setup-node@v4\n        with: { node-version: 22 }\n      - run: npm install";

/// A project in Rust.
pub fn rust(name: &str, world: World) -> Vec<ProjectFile> {
    let hook = match world {
        World::TaskSchema => template!("rust/task-schema.rs.in"),
        World::TaskSchemaStreaming => template!("rust/task-schema-streaming.rs.in"),
        World::BillingFormula => template!("rust/billing-formula.rs.in"),
        World::BillingEstimator => template!("rust/billing-estimator.rs.in"),
        World::RoutingPolicy => template!("rust/routing-policy.rs.in"),
    };
    let fill = TemplateValues {
        name,
        world,
        language: "Rust",
        source: "src/lib.rs",
        needs: "`rustup target add wasm32-unknown-unknown`, and nothing else",
        setup: RUST_SETUP,
    };
    let mut files = fill.all(&[
        ("Cargo.toml", template!("rust/Cargo.toml.in")),
        (".cargo/config.toml", template!("rust/config.toml.in")),
        (".gitignore", "/target\n/dist\n"),
        ("src/lib.rs", hook),
    ]);
    files.extend(sdk());
    files
}

/// A project in JavaScript.
pub fn javascript(name: &str, world: World) -> Vec<ProjectFile> {
    let hook = match world {
        World::TaskSchema => template!("js/task-schema.js.in"),
        World::TaskSchemaStreaming => template!("js/task-schema-streaming.js.in"),
        World::BillingFormula => template!("js/billing-formula.js.in"),
        World::BillingEstimator => template!("js/billing-estimator.js.in"),
        World::RoutingPolicy => template!("js/routing-policy.js.in"),
    };
    let fill = TemplateValues {
        name,
        world,
        language: "JavaScript",
        source: "plugin.js",
        needs: "node 18 or later with npm, which fetches componentize-qjs",
        setup: JAVASCRIPT_SETUP,
    };
    fill.all(&[
        ("package.json", template!("js/package.json.in")),
        (".gitignore", "/node_modules\n/dist\n"),
        ("plugin.js", hook),
    ])
}

/// The SDK and the logic that it calls, as crates of a project.
pub fn sdk() -> Vec<ProjectFile> {
    let manifest = (
        "Cargo.toml".to_owned(),
        template!("rust/sdk.toml.in").to_owned(),
    );
    let sources = SDK.iter().map(|(name, text)| {
        let (there, here) = WIT_PLACES;
        (format!("src/{name}"), text.replace(there, here))
    });
    std::iter::once(manifest)
        .chain(sources)
        .map(|(path, text)| (format!("vendor/infergate-sdk/{path}"), text))
        .chain(tasks())
        .collect()
}

/// `infergate-tasks` as a crate of a project, with the schemas that it embeds.
fn tasks() -> impl Iterator<Item = ProjectFile> {
    let manifest = [("Cargo.toml", template!("rust/tasks.toml.in"))];
    let sources = manifest.into_iter().chain(TASKS.iter().copied());
    let sources = sources.map(|(path, text)| (path.to_owned(), text));
    let schemas = Task::ALL.into_iter().filter_map(|task| {
        let schemas = BuiltinTask::of(task).schemas()?;
        let slug = task.slug();
        Some([
            (format!("schemas/{slug}/input.schema.json"), schemas.input),
            (format!("schemas/{slug}/output.schema.json"), schemas.output),
        ])
    });
    sources
        .chain(schemas.flatten())
        .map(|(path, text)| (format!("vendor/infergate-tasks/{path}"), text.to_owned()))
}

/// Values that are put into templates.
struct TemplateValues<'a> {
    name: &'a str,
    world: World,
    language: &'a str,
    source: &'a str,
    needs: &'a str,
    setup: &'a str,
}

impl TemplateValues<'_> {
    /// The files of a language, and those of every project.
    fn all(&self, own: &[TemplateFile]) -> Vec<ProjectFile> {
        let common = [
            ("README.md", template!("README.md.in")),
            (".github/workflows/plugin.yml", template!("ci.yml.in")),
        ];
        let fixtures = fixtures(self.world).iter();
        let fixtures =
            fixtures.map(|(name, text)| (format!("tests/{name}.json"), (*text).to_owned()));
        own.iter()
            .chain(&common)
            .map(|(path, text)| ((*path).to_owned(), self.text(text)))
            .chain(fixtures)
            .collect()
    }

    fn text(&self, template: &str) -> String {
        let role = self.world.role();
        [
            ("@NAME@", self.name),
            ("@WORLD@", self.world.name()),
            ("@ROLE@", role),
            ("@LANGUAGE@", self.language),
            ("@SOURCE@", self.source),
            ("@NEEDS@", self.needs),
            ("@SETUP@", self.setup),
        ]
        .iter()
        .fold(template.to_owned(), |text, (mark, value)| {
            text.replace(mark, value)
        })
    }
}

/// The same for every language.
const fn fixtures(world: World) -> &'static [TemplateFile] {
    match world {
        World::TaskSchema => &[
            (
                "prepare-fills-in-max-tokens",
                template!("fixtures/task-schema/prepare-fills-in-max-tokens.json"),
            ),
            (
                "prepare-refuses-a-forbidden-word",
                template!("fixtures/task-schema/prepare-refuses-a-forbidden-word.json"),
            ),
        ],
        World::TaskSchemaStreaming => &[
            (
                "prepare-fills-in-max-tokens",
                template!("fixtures/task-schema-streaming/prepare-fills-in-max-tokens.json"),
            ),
            (
                "prepare-refuses-a-forbidden-word",
                template!("fixtures/task-schema-streaming/prepare-refuses-a-forbidden-word.json"),
            ),
            (
                "push-drops-empty-events",
                template!("fixtures/task-schema-streaming/push-drops-empty-events.json"),
            ),
        ],
        World::BillingFormula => &[
            (
                "price-has-a-minimum",
                template!("fixtures/billing-formula/price-has-a-minimum.json"),
            ),
            (
                "price-refuses-an-empty-tariff",
                template!("fixtures/billing-formula/price-refuses-an-empty-tariff.json"),
            ),
        ],
        World::BillingEstimator => &[
            (
                "estimate-counts-words",
                template!("fixtures/billing-estimator/estimate-counts-words.json"),
            ),
            (
                "price-refuses-an-empty-tariff",
                template!("fixtures/billing-estimator/price-refuses-an-empty-tariff.json"),
            ),
        ],
        World::RoutingPolicy => &[
            (
                "rank-shortest-queue-first",
                template!("fixtures/routing-policy/rank-shortest-queue-first.json"),
            ),
            (
                "settings-refuses-step-0",
                template!("fixtures/routing-policy/settings-refuses-step-0.json"),
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// plugins/sdk of this repository.
    const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/sdk");

    #[test]
    fn the_sdk_of_a_project_is_whole_and_finds_its_interfaces() {
        let mut there: Vec<String> = std::fs::read_dir(format!("{HERE}/src"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let here: Vec<&str> = SDK.iter().map(|(name, _)| *name).collect();
        assert_eq!(here, there);
        let sources = sdk();
        assert!(
            sources
                .iter()
                .all(|(_, text)| !text.contains("../../wit/host"))
        );
        let bindings = sources
            .iter()
            .find(|(path, _)| path.ends_with("bindings.rs"));
        assert!(bindings.unwrap().1.contains(WIT_PLACES.1));
    }

    #[test]
    fn the_logic_of_a_project_is_whole() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tasks");
        let mut there = Vec::new();
        collect(Path::new(root), Path::new(""), &mut there);
        there.sort();
        let tasks = tasks().map(|(path, _)| path);
        let mut here: Vec<String> = tasks
            .filter_map(|path| Some(path.strip_prefix("vendor/infergate-tasks/")?.to_owned()))
            .collect();
        here.sort();
        assert_eq!(here, there);
    }

    /// Files below `root`, each by its path from there.
    fn collect(root: &Path, below: &Path, files: &mut Vec<String>) {
        for entry in std::fs::read_dir(root.join(below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            match root.join(&path).is_dir() {
                true => collect(root, &path, files),
                false => files.push(path.to_str().unwrap().to_owned()),
            }
        }
    }

    #[test]
    fn the_sdk_of_a_project_depends_on_what_the_repositorys_does() {
        let manifest = std::fs::read_to_string(format!("{HERE}/Cargo.toml")).unwrap();
        let line = manifest
            .lines()
            .find(|line| line.starts_with("wit-bindgen = "));
        assert!(template!("rust/sdk.toml.in").contains(line.unwrap()));
    }
}
