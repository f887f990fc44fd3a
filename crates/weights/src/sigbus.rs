//! A file cut short while it is mapped: ends the program with a message instead of a bare SIGBUS.
//!
//! Reading a page beyond the new end of a mapped file raises SIGBUS, and nothing can repair the read: the
//! weights are gone. The handler installed here looks the faulting address up among the maps that
//! [`watch`] was told of, writes which file it was to standard error and ends the process. Any other
//! SIGBUS goes to whoever handled it before.

use std::ops::Range;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

/// One mapped file. Nodes are never freed: the handler may walk the list at any time. A node is used
/// again when the same file is mapped again, so a program leaks one node per distinct file.
struct Node {
    start: AtomicUsize,
    /// 0 while nothing is mapped.
    end: AtomicUsize,
    message: &'static [u8],
    next: AtomicPtr<Node>,
}

static MAPS: AtomicPtr<Node> = AtomicPtr::new(null_mut());
/// Held by those who change the list; the handler only reads it.
static CHANGE: Mutex<()> = Mutex::new(());
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Keeps a range of addresses watched until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch(&'static Node);

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Node")
    }
}

/// Watches the map of `file` at `addresses`; installs the handler on the first call.
pub(crate) fn watch(addresses: Range<usize>, file: &Path) -> Watch {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(install);
    let message = format!(
        "\ncalla: {} became shorter or unreadable while it was in use (was it replaced or its disk \
         removed?); its weights are lost, so the program ends. Restore the file and start again.\n",
        file.display()
    );
    let _guard = CHANGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut node = MAPS.load(Ordering::Acquire);
    // SAFETY: every pointer in the list comes from `Box::leak` below and so is valid for ever.
    while let Some(known) = unsafe { node.as_ref() } {
        if known.end.load(Ordering::Relaxed) == 0 && known.message == message.as_bytes() {
            known.start.store(addresses.start, Ordering::Relaxed);
            known.end.store(addresses.end, Ordering::Release);
            return Watch(known);
        }
        node = known.next.load(Ordering::Acquire);
    }
    let node: &'static Node = Box::leak(Box::new(Node {
        start: AtomicUsize::new(addresses.start),
        end: AtomicUsize::new(addresses.end),
        message: Box::leak(message.into_bytes().into_boxed_slice()),
        next: AtomicPtr::new(MAPS.load(Ordering::Acquire)),
    }));
    MAPS.store(std::ptr::from_ref(node).cast_mut(), Ordering::Release);
    Watch(node)
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _guard = CHANGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.0.end.store(0, Ordering::Release);
    }
}

fn install() {
    // SAFETY: `sigaction` is a plain C struct for which all zeroes is a valid value.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks for the current one, written to a live local.
    if unsafe { libc::sigaction(libc::SIGBUS, null(), &raw mut previous) } != 0 {
        return;
    }
    // Stored before the handler can run.
    PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` names a handler that calls only async-signal-safe functions (see there), with the
    // signature that SA_SIGINFO asks for.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) };
}

/// Calls only what POSIX lists as async-signal-safe: write, _exit, sigaction, raise; and reads atomics.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo; for SIGBUS it has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let sent = was_sent(code);
    if !sent && let Some(message) = message_for(address) {
        // SAFETY: `message` is a live static slice; _exit does not return.
        unsafe {
            libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
            libc::_exit(1);
        }
    }
    // SAFETY: `PREVIOUS` was stored, from a box that is never freed, before this handler was installed.
    // Restoring it and returning repeats the faulting instruction under the previous action; a signal that
    // was sent does not repeat by itself.
    unsafe {
        libc::sigaction(signal, PREVIOUS.load(Ordering::Acquire), null_mut());
        if sent {
            libc::raise(signal);
        }
    }
}

/// Whether a process sent the signal (kill, raise), so that its address means nothing. Linux gives such
/// signals codes up to 0, the BSDs this one; macOS also reports faults that it cannot explain as 0.
fn was_sent(code: libc::c_int) -> bool {
    const SI_USER_BSD: libc::c_int = 0x1_0001;
    code == SI_USER_BSD || (code <= 0 && !cfg!(target_vendor = "apple"))
}

fn message_for(address: usize) -> Option<&'static [u8]> {
    let mut node = MAPS.load(Ordering::Acquire);
    // SAFETY: nodes are leaked, so valid for ever.
    while let Some(map) = unsafe { node.as_ref() } {
        let end = map.end.load(Ordering::Acquire);
        if (map.start.load(Ordering::Relaxed)..end).contains(&address) {
            return Some(map.message);
        }
        node = map.next.load(Ordering::Acquire);
    }
    None
}
