//! Background work of revisions: one thread, a bounded queue. No request waits for it.
//!
//! Decides nothing. Work that finds the queue full is dropped and asked for again when there is cause. The
//! thread ends when the last revision is gone. Held by the context that revisions share.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Pieces of work that may wait. A piece is a few fixtures or one call.
const QUEUE_MAX: usize = 64;

type BackgroundWork = Box<dyn FnOnce() + Send>;

/// Sender to the background thread.
pub struct BackgroundQueue {
    queue: SyncSender<BackgroundWork>,
}

impl BackgroundQueue {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start() -> std::io::Result<BackgroundQueue> {
        let (queue, waiting) = sync_channel::<BackgroundWork>(QUEUE_MAX);
        thread::Builder::new()
            .name("plugin-side".into())
            .spawn(move || {
                for work in waiting {
                    work();
                }
            })?;
        Ok(BackgroundQueue { queue })
    }

    /// Queues `work`; false when the queue is full.
    pub fn offer(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.queue.try_send(Box::new(work)).is_ok()
    }
}
