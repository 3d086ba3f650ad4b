//! Requests of a connection of HTTP/2 that are served, and the tasks that serve them.
//!
//! Not how one is served, and not how many there may be.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::telemetry::{Metrics, watched};

type StreamWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Requests of a connection that are served.
///
/// The task of the connection serves a request that is alone: a task of its own would cost it a change of tasks, and
/// often of threads, at each step. From the second on each has a task. So a slow step of one holds up no other, and a
/// client with a single connection uses all cores.
pub(super) struct StreamsAtWork {
    /// The only one, in the task of the connection.
    alone: Option<StreamWork>,
    /// Tasks; none while one is alone.
    tasks: JoinSet<()>,
    metrics: Arc<Metrics>,
}

impl StreamsAtWork {
    /// None yet. `metrics` are told of those that hold a worker.
    pub fn new(metrics: &Arc<Metrics>) -> StreamsAtWork {
        StreamsAtWork {
            alone: None,
            tasks: JoinSet::new(),
            metrics: Arc::clone(metrics),
        }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.tasks.len() + usize::from(self.alone.is_some())
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins to serve a request.
    pub fn begin(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        // A panic ends the request, not the connection, as it does in a task.
        let serving: StreamWork = Box::pin(AssertUnwindSafe(serving).catch_unwind().map(drop));
        if self.is_empty() {
            self.alone = Some(serving);
            return;
        }
        for serving in self.alone.take().into_iter().chain([serving]) {
            let metrics = Arc::clone(&self.metrics);
            let blocked = move |held_ms| metrics.record_blocked_worker(held_ms);
            self.tasks.spawn(watched(serving, blocked));
        }
    }

    /// Serves, until one of them has ended. Never returns while there is none.
    pub async fn one_ended(&mut self) {
        std::future::poll_fn(|cx| {
            if let Some(alone) = &mut self.alone {
                let ended = alone.as_mut().poll(cx);
                if ended.is_ready() {
                    self.alone = None;
                }
                return ended;
            }
            match self.tasks.poll_join_next(cx) {
                Poll::Ready(Some(_)) => Poll::Ready(()),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }

    /// Serves, until all of them have ended.
    pub async fn all_ended(&mut self) {
        while !self.is_empty() {
            self.one_ended().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use tokio::task::{Id, try_id};

    fn none() -> StreamsAtWork {
        StreamsAtWork::new(&Arc::new(Metrics::new("0", "none", 0.0)))
    }

    /// Begins a request that ends once the sender is dropped. The receiver gets the task that has served its last step.
    fn held(streams: &mut StreamsAtWork) -> (oneshot::Sender<()>, oneshot::Receiver<Option<Id>>) {
        let (go, may_go) = oneshot::channel();
        let (ends, ended) = oneshot::channel();
        streams.begin(async move {
            let _ = may_go.await;
            ends.send(try_id()).unwrap();
        });
        (go, ended)
    }

    #[tokio::test]
    async fn one_that_is_alone_has_no_task_until_a_second_one_comes() {
        let mut streams = none();
        let (go, ended) = held(&mut streams);
        drop(go);
        streams.one_ended().await;
        // A test is no task.
        assert_eq!(ended.await, Ok(None));
        let (first_go, first) = held(&mut streams);
        assert_eq!(streams.one_ended().now_or_never(), None);
        let (second_go, second) = held(&mut streams);
        assert_eq!(streams.len(), 2);
        drop(second_go);
        // Tasks go on although nobody looks at them here.
        assert!(second.await.unwrap().is_some());
        streams.one_ended().await;
        drop(first_go);
        assert!(first.await.unwrap().is_some());
        streams.one_ended().await;
        assert!(streams.is_empty());
    }

    #[tokio::test]
    async fn a_panic_ends_one_request() {
        let mut streams = none();
        streams.begin(async { panic!("as planned") });
        streams.one_ended().await;
        let (go, ended) = held(&mut streams);
        drop(go);
        streams.one_ended().await;
        assert_eq!(ended.await, Ok(None));
    }
}
