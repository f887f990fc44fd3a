//! A GPU that fails under a server: the host driver with faults, by way of runner and engine.

use crate::chat::{CHAT, ask, with};
use crate::common::{Setup, config, demo_dir};
use calla_engine::{CutRule, Speculation, StateNeeds};
use calla_gpu::{BufferId, Device, DeviceError, Dispatch, GpuRunner, Range, RunnerSize, upload};
use calla_gpu_host::{HostDevice, Options};
use calla_runtime::{Driver, Notify, engine_config};
use calla_server::{LoadedModel, Model, Server};
use calla_weights::Checkpoint;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_util::sync::CancellationToken;

/// How many runs are to fail from now on: one after the other fails and takes one off.
type Faults = Arc<AtomicU32>;

/// For good.
const LOST: u32 = u32::MAX;

struct Faulty {
    device: HostDevice,
    faults: Faults,
}

impl Device for Faulty {
    fn allocate(&mut self, label: &str, bytes: u64) -> Result<BufferId, DeviceError> {
        self.device.allocate(label, bytes)
    }

    fn release(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.device.release(buffer)
    }

    fn write(&mut self, range: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(range, bytes)
    }

    fn read(&mut self, range: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(range, bytes)
    }

    fn run(&mut self, dispatches: &[Dispatch], stages: &[usize]) -> Result<(), DeviceError> {
        // Moves of state are small; a fault strikes a step.
        let left = self.faults.load(Ordering::SeqCst);
        if left > 0 && dispatches.len() > 10 {
            if left != LOST {
                self.faults.store(left - 1, Ordering::SeqCst);
            }
            return Err(DeviceError::failed("command buffer 7", "the GPU was reset"));
        }
        self.device.run(dispatches, stages)
    }
}

fn load(faults: &Faults, model: &Model, notify: Notify) -> Result<LoadedModel, String> {
    if faults.load(Ordering::SeqCst) == LOST {
        return Err("the GPU is lost".to_owned());
    }
    let device = HostDevice::new(&Options::default()).map_err(|error| error.to_string())?;
    let mut device = Faulty { device, faults: faults.clone() };
    let checkpoint = Checkpoint::open(demo_dir()).unwrap();
    let shape = checkpoint.config().shape.clone();
    let needs = StateNeeds { spare_slots: 1, ..StateNeeds::one_sequence(512, 2) };
    let network = upload(&mut device, &checkpoint.load().unwrap(), &shape).unwrap();
    let cache = needs.cache_size(&shape, 64 << 20);
    let size = RunnerSize { cache, sequences: 1, drafting: false };
    let runner = GpuRunner::new(device, "host", &shape, network, size).unwrap();
    let limits = calla_runtime::Limits {
        context: 512,
        running_max: 1,
        queue_max: 4,
        speculation: Speculation::Off,
        fast_cache: false,
    };
    let engine = engine_config(&runner, CutRule::new(vec![]), limits);
    let driver =
        Driver::with_notify(Box::new(runner), engine, model.compile(), None.into(), notify);
    Ok(LoadedModel { driver: driver.unwrap(), device: "host".to_owned() })
}

struct Client {
    url: String,
    http: reqwest::Client,
}

impl Client {
    async fn ask(&self) -> (u16, Value) {
        let body = with(ask("12 + 30 = ?"), &json!({"max_tokens": 2, "enable_thinking": false}));
        let response = self.http.post(format!("{}{CHAT}", self.url)).json(&body).send().await;
        let response = response.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn health(&self) -> (u16, Value) {
        let response = self.http.get(format!("{}/health", self.url)).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_fails_its_request_and_a_lost_gpu_the_server_without_a_hang() {
    if let Err(error) = HostDevice::new(&Options::default()) {
        println!("skipped: {error}");
        return;
    }
    let faults = Faults::default();
    let mut setup = config(&Setup { context: 512, parallel: 1, ..Setup::default() });
    let (model, of_loader) = (setup.model.clone(), faults.clone());
    setup.loader = Box::new(move |notify| load(&of_loader, &model, notify));
    let server = Server::start(setup).await.unwrap();
    let client =
        Client { url: format!("http://{}", server.address()), http: reqwest::Client::new() };
    server.when_loaded().await.unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.run(stop.clone()));

    let (status, good) = client.ask().await;
    assert_eq!(status, 200, "{good}");

    // Once: that request is told, and the next one is answered as before.
    faults.store(1, Ordering::SeqCst);
    let (status, failed) = client.ask().await;
    assert_eq!((status, &failed["error"]["code"]), (500, &json!("device_failed")), "{failed}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("command buffer 7 failed: the GPU was reset"), "{message}");
    let (status, health) = client.health().await;
    assert_eq!((status, &health["status"]), (200, &json!("degraded")), "{health}");
    let (status, again) = client.ask().await;
    assert_eq!((status, &again["choices"]), (200, &good["choices"]), "{again}");
    let (_, health) = client.health().await;
    assert_eq!((&health["status"], &health["faults"]), (&json!("ready"), &json!(1)));

    // Twice in a row: the GPU is opened anew for the next request.
    faults.store(2, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(client.ask().await.0, 500);
    }
    let (status, again) = client.ask().await;
    assert_eq!((status, &again["choices"]), (200, &good["choices"]), "{again}");

    // For good: then nobody is kept waiting.
    faults.store(LOST, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(client.ask().await.0, 500);
    }
    for _ in 0..2 {
        let (status, refused) = client.ask().await;
        assert_eq!(status, 503, "{refused}");
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("the GPU is lost"), "{message}");
    }
    let (status, health) = client.health().await;
    assert_eq!((status, &health["status"]), (503, &json!("degraded")), "{health}");
    assert!(health["reason"].as_str().unwrap().contains("the GPU is lost"), "{health}");

    // It comes back, as after the machine has slept.
    faults.store(0, Ordering::SeqCst);
    assert_eq!(client.ask().await.0, 200);
    stop.cancel();
    assert_eq!(serving.await.unwrap(), 0);
}
