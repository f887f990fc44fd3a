//! Counters for Prometheus. Names are vLLM's where they mean the same, so that routers that know vLLM read them.

use crate::app::App;
use crate::dialect::Dialect;
use crate::engine_status::EngineStatus;
use crate::error::{ApiError, ErrorKind};
use crate::generate::{End, Ended, Summary};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use calla_engine::Miss;
use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};
use std::time::Duration;

/// Seconds of whole requests and of their parts.
const SECONDS: [f64; 16] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds between two tokens.
const TOKEN_SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 2.0, 10.0];

/// All counters of a server.
pub(crate) struct Metrics {
    registry: Registry,
    running: IntGauge,
    waiting: IntGauge,
    kv_cache_usage: prometheus::Gauge,
    state_slots: IntGauge,
    snapshots: IntGauge,
    host_prefixes: IntGauge,
    host_bytes: IntGauge,
    saved_prefixes: IntGauge,
    resident_bytes: IntGauge,
    evictions: IntCounter,
    gave_way: IntCounter,
    host_tokens: IntCounter,
    disk_tokens: IntCounter,
    file_errors: IntCounter,
    faults: IntCounter,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    drafted_tokens: IntCounter,
    accepted_tokens: IntCounter,
    cache_queries: IntCounter,
    cache_hits: IntCounter,
    cache_misses: IntCounterVec,
    succeeded: IntCounterVec,
    refused: IntCounterVec,
    first_token: Histogram,
    next_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
}

impl Metrics {
    /// Counters at zero, labelled with the model's name.
    ///
    /// # Errors
    /// If the name cannot be a label.
    pub(crate) fn new(model: &str) -> prometheus::Result<Self> {
        let labels = [("model_name".to_owned(), model.to_owned())].into();
        let registry = Registry::new_custom(None, Some(labels))?;
        let make = Maker { registry: &registry };
        Ok(Self {
            running: make.gauge("vllm:num_requests_running", "Requests that run")?,
            waiting: make.gauge("vllm:num_requests_waiting", "Requests that wait")?,
            kv_cache_usage: make.share(
                "vllm:kv_cache_usage_perc",
                "Share of the KV pages in use, by requests and by cached prefixes; 1 is all",
            )?,
            state_slots: make.gauge("calla_state_slots_used", "Recurrent states in use")?,
            snapshots: make.gauge("calla_prefix_cache_snapshots", "Prefixes in memory")?,
            host_prefixes: make.gauge(
                "calla_prefix_cache_host_prefixes",
                "Prefixes in host memory, behind the GPU's",
            )?,
            host_bytes: make.gauge(
                "calla_prefix_cache_host_bytes",
                "Bytes of state in host memory, behind the GPU's",
            )?,
            saved_prefixes: make.gauge("calla_prefix_cache_files", "Prefixes on disk")?,
            resident_bytes: make.gauge(
                "process_resident_memory_bytes",
                "Memory of the process that is resident, mapped weights included",
            )?,
            evictions: make.counter("calla_prefix_cache_evictions_total", "Snapshots given up")?,
            gave_way: make.counter(
                "calla_prefix_cache_gave_way_total",
                "Times that cached prefixes gave way because the system was short of memory",
            )?,
            host_tokens: make.counter(
                "calla_prefix_cache_host_tokens_total",
                "Prompt tokens reused from host memory",
            )?,
            disk_tokens: make.counter(
                "calla_prefix_cache_disk_tokens_total",
                "Prompt tokens reused from disk",
            )?,
            file_errors: make
                .counter("calla_prefix_cache_file_errors_total", "Loads and saves that failed")?,
            faults: make.counter("calla_faults_total", "Failures of device or engine")?,
            prompt_tokens: make.counter("vllm:prompt_tokens_total", "Prompt tokens")?,
            generation_tokens: make.counter("vllm:generation_tokens_total", "Tokens generated")?,
            drafted_tokens: make
                .counter("vllm:spec_decode_num_draft_tokens_total", "Tokens drafted")?,
            accepted_tokens: make
                .counter("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens kept")?,
            cache_queries: make
                .counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up")?,
            cache_hits: make.counter("vllm:prefix_cache_hits_total", "Prompt tokens reused")?,
            cache_misses: make.counters(
                "calla_prefix_cache_misses_total",
                "Requests that reused less than agreed with an earlier one, by reason",
                "reason",
            )?,
            succeeded: make.counters(
                "vllm:request_success_total",
                "Replies that were completed, by how they ended",
                "finished_reason",
            )?,
            refused: make.counters(
                "calla_requests_failed_total",
                "Requests that were refused or failed, by kind",
                "kind",
            )?,
            first_token: make.histogram(
                "vllm:time_to_first_token_seconds",
                "From a request to its first token",
                &SECONDS,
            )?,
            next_token: make.histogram(
                "vllm:inter_token_latency_seconds",
                "Between two tokens",
                &TOKEN_SECONDS,
            )?,
            whole: make.histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request to its end",
                &SECONDS,
            )?,
            queue: make.histogram(
                "vllm:request_queue_time_seconds",
                "From a request to its place",
                &SECONDS,
            )?,
            prefill: make.histogram(
                "vllm:request_prefill_time_seconds",
                "From its place to its first token",
                &SECONDS,
            )?,
            decode: make.histogram(
                "vllm:request_decode_time_seconds",
                "From its first token to its last",
                &SECONDS,
            )?,
            registry,
        })
    }

    /// A request was refused or failed.
    pub(crate) fn refused(&self, error: &ApiError) {
        let kind = match error.kind {
            ErrorKind::QueueFull => "queue_full",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Server => "server",
            _ => "client",
        };
        self.refused.with_label_values(&[kind]).inc();
    }

    /// The first token of a request came.
    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// A further token came.
    pub(crate) fn next_token(&self, after: Duration) {
        self.next_token.observe(after.as_secs_f64());
    }

    /// One reply has ended.
    pub(crate) fn reply_ended(&self, ended: &Ended) {
        let reason = match ended.end {
            End::Stop | End::StopString(_) => "stop",
            End::Length => "length",
            End::ToolCalls => "tool_calls",
        };
        self.succeeded.with_label_values(&[reason]).inc();
        self.cache_queries.inc_by(ended.usage.prompt_tokens as u64);
        self.cache_hits.inc_by(ended.usage.reuse.reused as u64);
        if let Some(miss) = ended.usage.reuse.miss {
            self.cache_misses.with_label_values(&[Miss::name(miss)]).inc();
        }
    }

    /// All replies of a request have ended.
    pub(crate) fn request_ended(&self, summary: &Summary, after: Duration) {
        self.whole.observe(after.as_secs_f64());
        self.queue.observe(summary.timings.queue);
        self.prefill.observe(summary.timings.prefill);
        self.decode.observe(summary.timings.decode);
    }

    /// All of them in Prometheus' text format, with what the engine says of itself.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn text(&self, status: &EngineStatus) -> prometheus::Result<String> {
        self.running.set(status.running as i64);
        self.waiting.set(status.waiting as i64);
        let occupancy = status.occupancy;
        let share = occupancy.map_or(0.0, |o| o.pages_used as f64 / o.pages.max(1) as f64);
        self.kv_cache_usage.set(share);
        self.state_slots.set(occupancy.map_or(0, |o| o.slots_used as i64));
        self.snapshots.set(occupancy.map_or(0, |o| o.snapshots as i64));
        self.host_prefixes.set(status.saved.host_prefixes as i64);
        self.host_bytes.set(status.saved.host_bytes as i64);
        self.saved_prefixes.set(status.saved.files as i64);
        self.resident_bytes.set(resident_bytes().unwrap_or(0));
        let counts = &status.counts;
        raise(&self.evictions, counts.evictions);
        raise(&self.gave_way, counts.gave_way);
        raise(&self.host_tokens, counts.host_tokens);
        raise(&self.disk_tokens, counts.loaded_tokens);
        raise(&self.file_errors, counts.file_errors);
        raise(&self.faults, status.faults);
        raise(&self.prompt_tokens, counts.prompt_tokens);
        raise(&self.generation_tokens, counts.generated_tokens);
        raise(&self.drafted_tokens, counts.drafted_tokens);
        raise(&self.accepted_tokens, counts.accepted_tokens);
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// All counters, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "calla",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain"))
)]
pub(crate) async fn scrape(State(app): State<App>) -> Response {
    let status = app.service.status();
    match app.service.metrics.text(&status) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            let message = format!("the counters could not be written: {error}");
            Dialect::OpenAi.error_response(&ApiError::new(ErrorKind::Server, message))
        }
    }
}

/// Brings a counter up to a count that is kept elsewhere.
fn raise(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

/// Resident memory of this process, where the system tells.
fn resident_bytes() -> Option<i64> {
    let process = sysinfo::get_current_pid().ok()?;
    let mut system = sysinfo::System::new().ok()?;
    let only = sysinfo::ProcessesToUpdate::Some(&[process]);
    let what = sysinfo::ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(only, false, what);
    i64::try_from(system.process(process)?.memory()).ok()
}

/// Makes counters that belong to a registry.
struct Maker<'a> {
    registry: &'a Registry,
}

impl Maker<'_> {
    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        let gauge = IntGauge::new(name, help)?;
        self.registry.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn share(&self, name: &str, help: &str) -> prometheus::Result<prometheus::Gauge> {
        let gauge = prometheus::Gauge::new(name, help)?;
        self.registry.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::new(name, help)?;
        self.registry.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> prometheus::Result<IntCounterVec> {
        let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
        self.registry.register(Box::new(counters.clone()))?;
        Ok(counters)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let histogram = Histogram::with_opts(options)?;
        self.registry.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }
}
