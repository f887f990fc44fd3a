//! A process that may open no more files.

use crate::toy::{Toy, head};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set in the process that runs out of files, which is this test once more.
const CHILD: &str = "CALLA_TEST_FEW_FILES";
/// What it may open; enough for it to start.
const FILES: u64 = 400;
/// What it leaves free for connections.
const FREE: usize = 10;

#[test]
fn connections_wait_until_files_can_be_opened_again() {
    if std::env::var_os(CHILD).is_some() {
        return serve_with_few_files();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "files::connections_wait_until_files_can_be_opened_again"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = out.find_map(|line| Some(line.unwrap().split_once("serving at ")?.1.to_owned()));
    let address = address.expect("the server did not start");

    let mut clients: Vec<_> =
        (0..4 * FREE).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let last = clients.last_mut().unwrap();
    last.write_all(head("GET", "/health", &["Host: localhost"]).as_bytes()).unwrap();
    let mut answer = [0; 12];
    last.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(last.read(&mut answer).is_err(), "there were files left");

    let mut input = child.stdin.take().unwrap();
    input.write_all(b"free\n").unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(input);
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    // It tried several times and said so once.
    assert_eq!(log.matches("cannot take a connection").count(), 1, "{log}");
}

/// Serves without files to open until a line comes, and with them until the input ends.
fn serve_with_few_files() {
    rlimit::setrlimit(rlimit::Resource::NOFILE, FILES, FILES).unwrap();
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let toy = runtime.block_on(Toy::start());
    // Let it have counted its files.
    std::thread::sleep(Duration::from_millis(100));
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    assert!(files.len() > FREE, "{} files could be opened", files.len());
    files.truncate(files.len() - FREE);
    println!("serving at {}", toy.address);
    let mut lines = io::stdin().lines();
    lines.next().unwrap().unwrap();
    drop(files);
    assert!(lines.next().is_none());
}
