//! The Replicate dialect: predictions and trainings that outlive their request, and the catalogue around them.
//!
//! Bytes ↔ values only: jobs are kept and run elsewhere. Shapes: <https://replicate.com/docs/reference/http>.

mod deployments;
mod descriptor;
mod error;
mod files;
mod preference;
mod request;
mod response;
mod routes;
#[cfg(test)]
mod tests;

pub use deployments::{DeploymentRequest, DeploymentView, deployment, deployments};
pub(in crate::api) use descriptor::Replicate;
pub use files::FileView;
pub use preference::{WAIT_MAX_SECS, wait_preference};
pub use request::{CreateRequest, VersionName, model_path, read_create, search_words};
pub use response::{
    ModelView, PageView, PredictionUrls, PredictionView, account, hardware, model, models,
    text_output_schema, versions, webhook_secret,
};
pub use routes::{DeploymentRoute, JobCollection, ModelPath, ReplicateRoute};
