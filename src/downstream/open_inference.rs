//! Pages of the Open Inference Protocol: the gateway's own, and those that servers show of their models.
//!
//! An account sees the models that it may use, and of those the ones whose servers speak the protocol. Inference is the
//! pipeline's. Reads leave no event and take no permit; at most [`PAGES_IN_FLIGHT_MAX`] of them are at servers at once.

use std::sync::Arc;

use infergate_core::api::open_inference::{
    self, ListedModel, ModelPage, OpenInferenceRoute, VersionedModel,
};
use infergate_core::api::{ApiDialect, render};
use infergate_core::model::{Access, Catalog};
use infergate_core::{Millis, Refusal};
use tokio::sync::Semaphore;

use super::request_body;
use super::server::DownstreamServer;
use super::session::Session;
use crate::pipeline::{AuthenticatedRequest, RequestContext, RequestError, respond};
use crate::state::{Account, ConfigSnapshot};
use crate::upstream::{ModelRuntime, Target, path_segment, read_page};

/// Pages that are read from servers at once: they take no permit, and must not take a server's time either.
const PAGES_IN_FLIGHT_MAX: usize = 16;
/// Time after which a client asks again that has found no room.
const PAGE_RETRY: Millis = Millis::from_secs(1);

static PAGES: Semaphore = Semaphore::const_new(PAGES_IN_FLIGHT_MAX);

/// Status and body of a page.
type Page = (u16, Vec<u8>);

impl DownstreamServer {
    /// Answers what is asked of the gateway or of a model beside inference.
    pub(super) async fn answer_open_inference(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        head: AuthenticatedRequest,
        route: OpenInferenceRoute,
    ) -> Result<(), RequestError> {
        ctx.discard();
        let account = &head.account;
        let page = match route {
            OpenInferenceRoute::Live => (200, Vec::new()),
            OpenInferenceRoute::Ready if self.shared.drain.is_draining() => {
                return Err(Refusal::Draining.into());
            }
            OpenInferenceRoute::Ready => (200, Vec::new()),
            OpenInferenceRoute::Server => {
                (200, open_inference::server_page(env!("CARGO_PKG_VERSION")))
            }
            OpenInferenceRoute::Index => {
                let (body, _) =
                    request_body::read_body(&self.shared, session, ctx, account).await?;
                let ready_only = open_inference::wants_ready_only(&body);
                (200, index(&ctx.snapshot, account, ready_only))
            }
            OpenInferenceRoute::Model(named, page) => {
                let snapshot = Arc::clone(&ctx.snapshot);
                self.model_page(&snapshot, account, &named, page).await?
            }
        };
        respond::json_with(session, ctx, page, &[])
            .await
            .map_err(|_| RequestError::Aborted)
    }

    /// A page about one model, as its server shows it.
    async fn model_page(
        &self,
        snapshot: &ConfigSnapshot,
        account: &Account,
        named: &VersionedModel,
        page: ModelPage,
    ) -> Result<Page, Refusal> {
        let found = snapshot.catalog.model_for(&named.model, &account.spec);
        let (index, _) = found.map_err(|_| Refusal::NoSuchModel)?;
        let model = snapshot.models.get(index);
        if !model.backend.takes_tensors() {
            return Err(Refusal::NoSuchModel);
        }
        if page == ModelPage::Ready && named.version.is_none() {
            return match is_ready(model) {
                true => Ok((200, Vec::new())),
                false => Err(Refusal::NoHealthyEndpoint),
            };
        }
        let target = healthy_target(model).ok_or(Refusal::NoHealthyEndpoint)?;
        let version = named.version.as_ref();
        let version = version.map_or(String::new(), |version| format!("/versions/{version}"));
        let name = path_segment(&target.backend_model);
        let path = format!("/v2/models/{name}{version}{}", page.suffix());
        let busy = Refusal::Busy {
            retry_after: PAGE_RETRY,
        };
        let _place = PAGES.try_acquire().map_err(|_| busy)?;
        let read = read_page(&self.shared.client, &target, &path).await;
        let (status, body) = read.ok_or(Refusal::UpstreamFailed)?;
        match status {
            200 if page == ModelPage::Ready => Ok((200, Vec::new())),
            200 => {
                let seen = open_inference::client_page(&body, &named.model);
                Ok((200, seen.ok_or(Refusal::UpstreamFailed)?))
            }
            // A version that the server does not have, or a page.
            400 | 404 | 501 => {
                let dialect = ApiDialect::OpenInference;
                Ok((status, render::server_error(dialect, status, &body, None)))
            }
            _ => Err(Refusal::UpstreamFailed),
        }
    }
}

/// The models that an account may use, and whose servers speak the protocol.
fn index(snapshot: &ConfigSnapshot, account: &Account, ready_only: bool) -> Vec<u8> {
    let models = snapshot.models.iter();
    let allowed = models.filter(|model| {
        model.backend.takes_tensors()
            && Catalog::access(&account.spec, &model.spec) == Access::Allowed
    });
    let listed = allowed.filter_map(|model| {
        let is_ready = is_ready(model);
        (is_ready || !ready_only).then(|| ListedModel::new(model.spec.id.as_str(), is_ready))
    });
    open_inference::index(&listed.collect::<Vec<_>>())
}

/// Returns whether a request is served: at once, or once the model is loaded for it.
fn is_ready(model: &ModelRuntime) -> bool {
    healthy_target(model).is_some() || model.gate.is_cold()
}

fn healthy_target(model: &ModelRuntime) -> Option<Arc<Target>> {
    let targets = model.gate.targets().into_iter();
    let mut healthy = targets.filter(|(_, is_healthy)| *is_healthy);
    healthy.next().map(|(target, _)| target)
}
