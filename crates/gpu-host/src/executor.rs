//! The process that runs kernels, and how it is spoken to: see `runtime/executor.cpp`.

use crate::error::{Kind, io_error};
use crate::memory::{Memory, RESERVED_BYTES};
use crate::report;
use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Lines on standard error that are kept for a message.
const LINES_KEPT: usize = 30;

/// A request, as bytes.
#[derive(Debug, Default)]
pub(crate) struct Request(Vec<u8>);

impl Request {
    pub(crate) fn load(library: &Path) -> Self {
        let mut request = Self::default();
        request.u32(1).bytes(library.as_os_str().as_encoded_bytes());
        request
    }

    pub(crate) fn run() -> Self {
        let mut request = Self::default();
        request.u32(2);
        request
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32).0.extend(value);
        self
    }
}

/// A running executor.
#[derive(Debug)]
pub(crate) struct Executor {
    child: Child,
    socket: UnixStream,
    lines: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
    timeout: Duration,
}

impl Executor {
    pub(crate) fn start(program: &Path, memory: &Memory, timeout: Duration) -> Result<Self, Kind> {
        let failed = || format!("start {}", program.display());
        let (socket, theirs) = UnixStream::pair().map_err(io_error(failed()))?;
        socket.set_read_timeout(Some(timeout)).map_err(io_error(failed()))?;
        let mut child = Command::new(program)
            .arg(memory.descriptor().to_string())
            .arg(RESERVED_BYTES.to_string())
            // Stacks of fibers are none that the sanitizer could keep frames of.
            .env("ASAN_OPTIONS", "detect_stack_use_after_return=0:detect_leaks=0:allow_addr2line=1")
            .env("UBSAN_OPTIONS", "print_stacktrace=1:symbolize=0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io_error(failed()))?;
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let reader = child.stderr.take().map(|stderr| {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                    // A report opens with what matters most.
                    if lines.len() < LINES_KEPT {
                        lines.push_back(line);
                    }
                }
            })
        });
        Ok(Self { child, socket, lines, reader, timeout })
    }

    /// Sends a request and waits for the answer; the error says what the executor reported. It is of no use after one.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<String, String> {
        self.exchange(request).map_err(|error| {
            let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            let _ = self.child.kill();
            let status = self.child.wait();
            if let Some(reader) = self.reader.take() {
                let _ = reader.join();
            }
            if late {
                return format!("it did not end within {} s", self.timeout.as_secs());
            }
            let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.is_empty() {
                status.map_or(error.to_string(), |status| format!("the executor ended: {status}"))
            } else {
                report::readable(lines.iter())
            }
        })
    }

    fn exchange(&mut self, request: &Request) -> io::Result<String> {
        let length = request.0.len() as u32;
        self.socket.write_all(&[&length.to_le_bytes()[..], &request.0].concat())?;
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        self.socket.read_exact(&mut text)?;
        String::from_utf8(text).map_err(io::Error::other)
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
