//! Memory between the allocator and the kernel. Work comes in storms. Memory that a reading, an analysis or two
//! thousand handshakes needed for a moment would otherwise stay with the process for good.

/// Allocations of at least so many bytes are the kernel's own, and go back to it when they are freed: texts of the whole mesh are.
/// Said once, or the allocator would raise it to the largest that it has seen.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 256 * 1024;

/// Configures the allocator; to be called once, before there are threads. All threads share one heap: what one thread
/// frees another may use. Heaps of their own would each keep the most that a thread ever held. Threads beside the
/// serving thread use the heap only now and then.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
pub fn frugal() {
    // SAFETY: both settings may be changed at any time; they are refused or taken, and nothing in use moves.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
    }
}

/// Other allocators have no such settings.
#[cfg(not(target_env = "gnu"))]
pub fn frugal() {}

/// Gives freed memory back to the kernel.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
pub fn give_back() {
    // SAFETY: glibc locks each arena itself; nothing in use moves.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do it by themselves, or not at all.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
