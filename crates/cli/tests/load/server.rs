//! The program as a child process: started, watched from outside, killed.

use crate::prompts::demo_dir;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Requests that run at once.
pub(crate) const PARALLEL: usize = 16;
/// Memory for snapshots in MB, and tokens of context: little, so that all of it is soon in use.
const CACHE_MEMORY: &str = "60";
const CONTEXT: &str = "8192";
const START_TIME: Duration = Duration::from_secs(60);

/// A running server; dropping it kills it.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    pub(crate) url: String,
    said: Arc<Mutex<String>>,
}

impl Server {
    /// Starts the program and waits until it is ready. Port 0 takes a free one.
    pub(crate) fn start(port: u16, disk: Option<&Path>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_calla"));
        command.arg("serve").arg("--model").arg(demo_dir());
        command.args(["--port", &port.to_string(), "--parallel", &PARALLEL.to_string()]);
        command.args(["--cache-memory", CACHE_MEMORY, "--ctx", CONTEXT]);
        // Always drafting: what `auto` leaves untouched at first would look like growth when it is used.
        command.args(["--speculate", "2"]);
        if let Some(disk) = disk {
            command.arg("--disk-cache").arg(disk);
        }
        command.env_remove("CALLA_API_KEY").stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let said = Arc::new(Mutex::new(String::new()));
        let (sender, lines) = channel();
        let (pipe, heard) = (child.stderr.take().expect("a pipe"), Arc::clone(&said));
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let mut heard = heard.lock().unwrap();
                *heard += &line;
                heard.push('\n');
                // After the start nobody listens.
                let _ = sender.send(line);
            }
        });
        let mut server = Self { child, port, url: String::new(), said };
        let start = Instant::now();
        loop {
            let left = START_TIME.saturating_sub(start.elapsed());
            let line = lines.recv_timeout(left);
            let line =
                line.unwrap_or_else(|_| panic!("the server is not ready: {}", server.said()));
            if let Some((_, url)) = line.split_once("listening on ") {
                url.trim().clone_into(&mut server.url);
                let port = server.url.rsplit(':').next().expect("a port");
                server.port = port.parse().expect("a port");
            }
            if line.contains(" is ready") {
                return server;
            }
        }
    }

    /// All that it has said on standard error.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Checks that it told of nothing that should not happen.
    pub(crate) fn check_log(&self) {
        let said = self.said();
        let bad = ["bug", "panicked", "ERROR"].iter().find(|word| said.contains(**word));
        assert_eq!(bad, None, "the server said:\n{said}");
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it still runs");
        self.child.wait().expect("it can be waited for");
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().expect("kill");
        assert!(sent.success());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, at_most: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(start.elapsed() < at_most, "still running: {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Resident memory in bytes, where the system tells.
    pub(crate) fn resident(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    }

    /// Open files, where the system tells.
    pub(crate) fn files(&self) -> Option<usize> {
        Some(std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).ok()?.count())
    }

    /// What `/health` says once nothing runs and nothing waits.
    pub(crate) async fn idle(&self) -> Value {
        let client = reqwest::Client::new();
        let start = Instant::now();
        loop {
            let answer = client.get(self.url.clone() + "/health").send().await.expect("an answer");
            let health: Value = answer.json().await.expect("JSON");
            if health["running"] == 0 && health["waiting"] == 0 {
                return health;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "still busy: {health}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The sum of a counter of `/metrics` over its labels, and whether it was there.
    pub(crate) async fn counter(&self, name: &str) -> Option<u64> {
        let answer = reqwest::get(self.url.clone() + "/metrics").await.expect("an answer");
        let text = answer.text().await.expect("text");
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let values = lines.map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>());
        values.map(|value| value.expect("a number") as u64).reduce(|a, b| a + b)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
