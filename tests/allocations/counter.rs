//! The system's allocator with a count of the calls that take memory, and a thread that reports it.
//!
//! Not a profiler: sizes and places are not kept. A block that grows counts once more, a freed one does not.
//! Only the child process answers; the parent counts for nothing.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator {
    calls: AtomicU64::new(0),
};

/// Counts and passes on.
struct CountingAllocator {
    calls: AtomicU64,
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; the count touches no memory
// of a block.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.calls.fetch_add(1, Ordering::Relaxed);
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        unsafe { System.dealloc(block, layout) }
    }
}

/// Answers each byte on standard input with the count, eight bytes in native order, on standard output.
///
/// The process ends with its input, so that no gateway outlives its test. An answer allocates nothing after the
/// first one.
pub fn report_on_request() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        let mut output = std::io::stdout().lock();
        let mut request = [0];
        while input.read_exact(&mut request).is_ok() {
            let calls = ALLOCATOR.calls.load(Ordering::Relaxed).to_ne_bytes();
            if output
                .write_all(&calls)
                .and_then(|()| output.flush())
                .is_err()
            {
                break;
            }
        }
        std::process::exit(0);
    });
}
