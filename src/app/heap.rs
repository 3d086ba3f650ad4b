//! Settings of the C library's allocator for large blocks, made at the start, and the return of free memory.
//!
//! No allocation is made here. By default the library returns a freed block of more than 128 KiB to the
//! kernel, and the next body pays for its pages again. Here a heap keeps as much as bodies of the usual size
//! need. docs/decisions/005-system-allocator.md has the figures.

/// Blocks from this size on are mapped of their own and go back to the kernel when freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: i32 = 8 << 20;
/// Free bytes at the end of a heap beyond which it is cut.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: i32 = 32 << 20;

/// Sets both bounds. Another C library, or one that refuses, keeps its own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub fn keep_large_blocks() {
    // SAFETY: mallopt(3) takes two numbers and changes settings of the allocator under its own lock;
    // no other code sets them.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

/// Other C libraries keep their own bounds.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn keep_large_blocks() {}

/// Gives free pages of all heaps back to the kernel. Takes milliseconds, and each heap's lock meanwhile.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub fn trim() {
    // SAFETY: malloc_trim(3) takes a number and works on the allocator's own heaps under their locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other C libraries give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim() {}
