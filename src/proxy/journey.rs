//! State of a request in a cluster: visited nodes, budget over all nodes, and the request as it is
//! forwarded.
//!
//! Not the choice of nodes (`Fleet`) and not the budget ([`Hops`]). A node that knows no other has no
//! journeys, and its requests pay nothing for them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use infergate_core::routing::Hops;
use infergate_core::routing::fleet::{Chosen, Seek, Wants};
use infergate_core::{AccountId, Millis, ModelId};

use crate::peer::{Interim, Visit};
use crate::upstream::{Class, Sited};

/// Time beyond the deadline and three round trips (connection, proof, response) for the final message of the
/// working node. That node has the same deadline and tells the client of it.
const LAST_WORD: Duration = Duration::from_millis(100);

/// How much longer than the other node itself one waits for what it says.
pub fn last_word(rtt_us: u32) -> Duration {
    LAST_WORD + 3 * Duration::from_micros(rtt_us.into())
}

/// Forwarding state of one request.
pub struct Journey {
    /// Visited nodes, and what is left of the time and the budget.
    pub hops: Hops,
    /// Nodes of those that have handed it on to here, and this one.
    way: usize,
    /// `site/node` of each node it has been at, this one included, the first being the client's.
    pub path: Vec<Arc<str>>,
    /// The only site it may be served at.
    pub only_site: Option<Arc<str>>,
    /// By what the model's policy tells requests apart when it ranks sites.
    pub class: Class,
    /// Request to forward; empty while the body is not read.
    pub parcel: Parcel,
    /// Metadata from the forwarding node; none where the client speaks to this node.
    visit: Option<Told>,
    /// Another node has begun to answer: the event is that node's.
    told_elsewhere: bool,
}

/// Metadata that the forwarding node sent with the head.
struct Told {
    from: Arc<str>,
    account: AccountId,
    model: ModelId,
    is_limited: bool,
    tariff: Option<Arc<str>>,
    word: Word,
}

/// Interim messages sent to the forwarding node before the response.
#[derive(Clone, Copy, Debug, Default)]
pub struct Word {
    /// When it was told last.
    pub at: Option<Millis>,
    /// A model server may begin: there is nothing more to say.
    pub granted: bool,
}

/// Request of a client, as the next node gets it.
#[derive(Default)]
pub struct Parcel {
    /// Path and query.
    pub target: String,
    /// Header lines in wire form: those that may pass, and the body's type.
    pub headers: BytesMut,
    /// The body as it came.
    pub body: Bytes,
}

/// Where a request goes on to.
pub struct Going {
    /// Node to forward to.
    pub chosen: Chosen,
    /// How long it may wait there.
    pub wait_max: Millis,
}

impl Journey {
    /// A client's request begins here.
    pub fn begin(
        here: &Arc<str>,
        path: &[Arc<str>],
        left: Millis,
        only_site: Option<Arc<str>>,
        parcel: Parcel,
    ) -> Journey {
        Journey {
            hops: Hops::begin(here, left, parcel.body.len() as u64),
            way: 1,
            path: path.to_vec(),
            only_site,
            class: Class::default(),
            parcel,
            visit: None,
            told_elsewhere: false,
        }
    }

    /// Another node forwards it. Its last place is this one.
    pub fn of_visit(visit: Visit) -> Journey {
        let told = Told {
            from: visit.from,
            account: visit.account,
            model: visit.model,
            is_limited: visit.is_limited,
            tariff: visit.tariff,
            word: Word::default(),
        };
        Journey {
            way: visit.hops.visited.len(),
            hops: visit.hops,
            path: visit.path,
            only_site: visit.only_site,
            class: Class::default(),
            parcel: Parcel::default(),
            visit: Some(told),
            told_elsewhere: false,
        }
    }

    /// Its client speaks to this node.
    pub fn is_first(&self) -> bool {
        self.visit.is_none()
    }

    /// Account that pays, as the forwarding node says.
    pub fn account(&self) -> Option<&AccountId> {
        self.visit.as_ref().map(|told| &told.account)
    }

    /// The model it is to be served by, by the word of the node before.
    pub fn model(&self) -> Option<&ModelId> {
        self.visit.as_ref().map(|told| &told.model)
    }

    /// The day of its account has a limit, by the word of the node before.
    pub fn is_limited(&self) -> bool {
        self.visit.as_ref().is_some_and(|told| told.is_limited)
    }

    /// Tariff of the node that the client asked, as text; none where its client speaks to this node.
    pub fn tariff(&self) -> Option<&Arc<str>> {
        self.visit.as_ref()?.tariff.as_ref()
    }

    /// Returns the interim messages sent to the forwarding node; none where the client speaks to this node.
    pub fn word(&self) -> Option<Word> {
        self.visit.as_ref().map(|told| told.word)
    }

    /// Records that the node got the message that the request is queued, or that a model server may start.
    pub fn has_said(&mut self, interim: Interim, at: Millis) {
        if let Some(told) = &mut self.visit {
            let granted = told.word.granted || interim == Interim::Granted;
            told.word = Word {
                at: Some(at),
                granted,
            };
        }
    }

    /// The node that has forwarded it here.
    pub fn forwarder(&self) -> Option<Arc<str>> {
        self.visit.as_ref().map(|told| Arc::clone(&told.from))
    }

    /// Returns the query for nodes, with sites in the order of the model's policy.
    pub fn seek<'a>(
        &'a self,
        model: &'a ModelId,
        sites: Option<&'a Sited>,
        wants: Wants,
    ) -> Seek<'a> {
        Seek {
            model: model.as_str(),
            visited: &self.hops.visited,
            forced_site: self.only_site.as_deref(),
            sites: sites.map(|sited| &sited.order),
            wants,
        }
    }

    /// The same while it waits in line here: who had no room before may have some now.
    pub fn seek_again<'a>(&'a self, model: &'a ModelId, sites: Option<&'a Sited>) -> Seek<'a> {
        Seek {
            visited: self.hops.visited_by_waiter(self.way),
            ..self.seek(model, sites, Wants::Permit)
        }
    }

    /// Another model is to serve it: nodes that had no room for the former one may have some for that.
    pub fn changes_model(&mut self) {
        self.hops.visited.truncate(self.way);
    }

    /// Returns whether the request may be served at this site.
    pub fn may_stay(&self, site: &str) -> bool {
        self.only_site.as_deref().is_none_or(|only| only == site)
    }

    /// Another node has sent the head of an answer: whatever comes of it is told there.
    pub fn is_told_elsewhere(&self) -> bool {
        self.told_elsewhere
    }

    /// Sets whether another node owns the event.
    pub fn set_told_elsewhere(&mut self, told: bool) {
        self.told_elsewhere = told;
    }

    /// Returns the hop data for the chosen node; the rejection is compared with it.
    pub fn go(&mut self, going: &Going, left: Millis) -> Hops {
        let Going { chosen, wait_max } = going;
        let place: Arc<str> = format!("{}/{}", chosen.site, chosen.node.name).into();
        // Asked again, it stands where it was asked last.
        self.path.retain(|before| *before != place);
        self.path.push(place);
        self.hops.asks_again(&chosen.node.name);
        self.hops.forward(
            &chosen.node.name,
            left,
            *wait_max,
            chosen.in_flight.saturating_add(1),
            chosen.only,
        )
    }
}
