//! Paths of the dialect. Models stand in paths as `owner/name`.
//!
//! The list of models is the OpenAI dialect's path and not claimed here.

use crate::api::route::{RequestPath, RouteTarget, decoded};

/// Segments of the longest path.
const SEGMENTS_MAX: usize = 8;

/// Kind of the objects under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobCollection {
    /// `/v1/predictions`.
    Predictions,
    /// `/v1/trainings`.
    Trainings,
}

impl JobCollection {
    /// Returns the segment of the path.
    pub const fn segment(self) -> &'static str {
        match self {
            JobCollection::Predictions => "predictions",
            JobCollection::Trainings => "trainings",
        }
    }
}

/// Model or deployment in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPath {
    /// Owner.
    pub owner: String,
    /// Name.
    pub name: String,
}

impl ModelPath {
    /// Returns `owner/name`.
    pub fn full(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }
}

/// Route of deployments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeploymentRoute {
    /// Lists them.
    List,
    /// Makes one of the body.
    Create,
    /// Shows one.
    Get(ModelPath),
    /// Changes one by the body.
    Update(ModelPath),
    /// Removes one.
    Delete(ModelPath),
}

impl DeploymentRoute {
    /// Returns whether the request has a body that counts.
    pub const fn has_body(&self) -> bool {
        matches!(self, DeploymentRoute::Create | DeploymentRoute::Update(_))
    }
}

/// Route of the dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicateRoute {
    /// Creates a prediction of the version in the body.
    Create,
    /// Creates a prediction of a model.
    CreateOfModel(ModelPath),
    /// Creates a prediction of a deployment.
    CreateOfDeployment(ModelPath),
    /// Creates a training of a model's version.
    CreateTraining(ModelPath, String),
    /// Lists jobs; the query.
    List(JobCollection, String),
    /// Shows a job.
    Get(JobCollection, String),
    /// Cancels a job.
    Cancel(JobCollection, String),
    /// Shows a model.
    Model(ModelPath),
    /// Lists the versions of a model.
    Versions(ModelPath),
    /// Shows a version of a model.
    Version(ModelPath, String),
    /// Searches models; the text is the body.
    Search,
    /// Lists collections.
    Collections,
    /// Shows a collection.
    Collection(String),
    /// Lists hardware.
    Hardware,
    /// Shows or changes deployments.
    Deployments(DeploymentRoute),
    /// Shows the account.
    Account,
    /// Shows the secret that webhooks are signed with.
    WebhookSecret,
    /// Follows the output of a job; the id and the query.
    Stream(String, String),
    /// Keeps a file.
    CreateFile,
    /// Lists files; the query.
    ListFiles(String),
    /// Shows a file.
    GetFile(String),
    /// Deletes a file.
    DeleteFile(String),
    /// Downloads a file; the id and the query, which is signed.
    DownloadFile(String, String),
}

impl ReplicateRoute {
    /// Returns whether the route is one of files.
    pub const fn is_of_files(&self) -> bool {
        matches!(
            self,
            ReplicateRoute::CreateFile
                | ReplicateRoute::ListFiles(_)
                | ReplicateRoute::GetFile(_)
                | ReplicateRoute::DeleteFile(_)
                | ReplicateRoute::DownloadFile(..)
        )
    }

    /// Returns whether a token in the query takes the place of a key.
    pub const fn has_token(&self) -> bool {
        matches!(
            self,
            ReplicateRoute::Stream(..) | ReplicateRoute::DownloadFile(..)
        )
    }
}

/// Returns the target of a path of this dialect.
pub(super) fn route<'a>(request: &RequestPath<'a>) -> Option<RouteTarget<'a>> {
    if request.account.is_some() {
        return None;
    }
    let rest = request.path.strip_prefix("/v1/")?;
    // Every request of another dialect comes by here: most leave by their first letters.
    let may_be_own = matches!(
        rest.as_bytes(),
        [b'p' | b't' | b'd' | b'a' | b's' | b'w' | b'f', ..]
            | [b'm', b'o', ..]
            | [b'h', b'a', ..]
            | [b'c', b'o', b'l', ..]
    );
    if !may_be_own {
        return None;
    }
    let mut parts = [""; SEGMENTS_MAX];
    let mut count = 0;
    for part in rest.trim_end_matches('/').split('/') {
        *parts.get_mut(count)? = part;
        count += 1;
    }
    let parts = &parts[..count];
    let route = find(request.method, parts, request.query);
    match route {
        Some(route) => Some(RouteTarget::Replicate(Box::new(route))),
        None if is_own(parts) => Some(RouteTarget::Unknown),
        None => None,
    }
}

/// Returns whether no other dialect has paths like these.
fn is_own(parts: &[&str]) -> bool {
    matches!(
        parts,
        [
            "predictions"
                | "trainings"
                | "deployments"
                | "hardware"
                | "account"
                | "collections"
                | "streams"
                | "files",
            ..
        ] | ["webhooks", "default", ..]
            | ["models", _, _, "predictions" | "versions", ..]
    )
}

fn owned(part: &str) -> String {
    decoded(part).into_owned()
}

fn find(method: &str, parts: &[&str], query: &str) -> Option<ReplicateRoute> {
    use JobCollection::{Predictions, Trainings};
    let path = |owner: &str, name: &str| ModelPath {
        owner: owned(owner),
        name: owned(name),
    };
    let jobs = |segment: &str| match segment {
        "predictions" => Some(Predictions),
        "trainings" => Some(Trainings),
        _ => None,
    };
    Some(match (method, parts) {
        ("POST", ["predictions"]) => ReplicateRoute::Create,
        ("POST", ["models", owner, name, "predictions"]) => {
            ReplicateRoute::CreateOfModel(path(owner, name))
        }
        ("POST", ["deployments", owner, name, "predictions"]) => {
            ReplicateRoute::CreateOfDeployment(path(owner, name))
        }
        ("POST", ["models", owner, name, "versions", version, "trainings"]) => {
            ReplicateRoute::CreateTraining(path(owner, name), owned(version))
        }
        ("GET", [segment]) if jobs(segment).is_some() => {
            ReplicateRoute::List(jobs(segment)?, query.to_owned())
        }
        ("GET", [segment, id]) if jobs(segment).is_some() => {
            ReplicateRoute::Get(jobs(segment)?, owned(id))
        }
        ("POST", [segment, id, "cancel"]) if jobs(segment).is_some() => {
            ReplicateRoute::Cancel(jobs(segment)?, owned(id))
        }
        ("GET", ["models", owner, name]) => ReplicateRoute::Model(path(owner, name)),
        ("GET", ["models", owner, name, "versions"]) => ReplicateRoute::Versions(path(owner, name)),
        ("GET", ["models", owner, name, "versions", version]) => {
            ReplicateRoute::Version(path(owner, name), owned(version))
        }
        ("QUERY", ["models"]) => ReplicateRoute::Search,
        ("GET", ["collections"]) => ReplicateRoute::Collections,
        ("GET", ["collections", name]) => ReplicateRoute::Collection(owned(name)),
        ("GET", ["hardware"]) => ReplicateRoute::Hardware,
        (method, ["deployments", rest @ ..]) => {
            ReplicateRoute::Deployments(find_deployment(method, rest)?)
        }
        ("GET", ["account"]) => ReplicateRoute::Account,
        ("GET", ["webhooks", "default", "secret"]) => ReplicateRoute::WebhookSecret,
        ("GET", ["streams", id]) => ReplicateRoute::Stream(owned(id), query.to_owned()),
        ("POST", ["files"]) => ReplicateRoute::CreateFile,
        ("GET", ["files"]) => ReplicateRoute::ListFiles(query.to_owned()),
        ("GET", ["files", id]) => ReplicateRoute::GetFile(owned(id)),
        ("DELETE", ["files", id]) => ReplicateRoute::DeleteFile(owned(id)),
        ("GET", ["files", id, "download"]) => {
            ReplicateRoute::DownloadFile(owned(id), query.to_owned())
        }
        _ => return None,
    })
}

fn find_deployment(method: &str, rest: &[&str]) -> Option<DeploymentRoute> {
    let path = || match rest {
        [owner, name] => Some(ModelPath {
            owner: owned(owner),
            name: owned(name),
        }),
        _ => None,
    };
    Some(match (method, rest.len()) {
        ("GET", 0) => DeploymentRoute::List,
        ("POST", 0) => DeploymentRoute::Create,
        ("GET", 2) => DeploymentRoute::Get(path()?),
        ("PATCH", 2) => DeploymentRoute::Update(path()?),
        ("DELETE", 2) => DeploymentRoute::Delete(path()?),
        _ => return None,
    })
}
