//! Routes of the dialect beside inference: the gateway itself, and pages about its models.
//!
//! Paths are read by `routes`.

/// A model in a path, with a version where one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedModel {
    /// Name of the model.
    pub model: String,
    /// Version at its server: letters, digits, `.`, `_` and `-`.
    pub version: Option<String>,
}

/// Page about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPage {
    /// Inputs and outputs.
    Metadata,
    /// Configuration at its server.
    Config,
    /// Counts of its server.
    Stats,
    /// Whether requests are served.
    Ready,
}

impl ModelPage {
    /// Returns the end of its path, behind model and version.
    pub const fn suffix(self) -> &'static str {
        match self {
            ModelPage::Metadata => "",
            ModelPage::Config => "/config",
            ModelPage::Stats => "/stats",
            ModelPage::Ready => "/ready",
        }
    }
}

/// Route of the dialect beside inference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenInferenceRoute {
    /// Whether the gateway runs.
    Live,
    /// Whether the gateway takes requests.
    Ready,
    /// The gateway as a server.
    Server,
    /// Models of the account.
    Index,
    /// A page about one of them.
    Model(VersionedModel, ModelPage),
}

impl OpenInferenceRoute {
    /// Returns whether the route is open to everybody: probes have no key.
    pub const fn is_open(&self) -> bool {
        matches!(self, OpenInferenceRoute::Live | OpenInferenceRoute::Ready)
    }
}
