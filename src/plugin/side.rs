//! Work for revisions that no request waits for: one thread, a bounded queue.
//!
//! It decides nothing. What finds the queue full is left out: it is asked for again when there is cause.
//! The thread ends when the last revision is gone. Held by the ground that revisions stand on.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Pieces of work that may wait. One is a few fixtures or one call.
const QUEUE_MAX: usize = 64;

type Work = Box<dyn FnOnce() + Send>;

/// The way to the thread.
pub struct Side {
    queue: SyncSender<Work>,
}

impl Side {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system gives none.
    pub fn start() -> std::io::Result<Side> {
        let (queue, waiting) = sync_channel::<Work>(QUEUE_MAX);
        thread::Builder::new()
            .name("plugin-side".into())
            .spawn(move || {
                for work in waiting {
                    work();
                }
            })?;
        Ok(Side { queue })
    }

    /// Has `work` done at some time; false when too much waits already.
    pub fn offer(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.queue.try_send(Box::new(work)).is_ok()
    }
}
