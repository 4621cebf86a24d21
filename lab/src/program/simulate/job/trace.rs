//! A model from the trace of a real run: a layer for each bucket, with the time of the training threads for it.
//!
//! The file is that of [`Trace::save`](hexagram::algorithms::trace::Trace::save). A bucket's part of the backward
//! pass is the time from the start of the previous bucket's hook to the start of its own. If no hook sees gradients,
//! its part is in proportion to its size. If a rank's device recorded when it computed, the device's times count.
//! Time between steps counts as forward pass. All times are medians over ranks and steps, without the first step.

use super::model::ModelLayer;
use hexagram::DType;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Work of one rank in one step, in microseconds.
#[derive(Debug, Default)]
struct StepTrace {
    forward: f64,
    /// Start and end of the backward passes.
    backward: Vec<[f64; 2]>,
    /// Start of the hook that sees the gradients of each bucket.
    ready: BTreeMap<u64, f64>,
}

/// Reads the layers, in the order of the forward pass, or returns the defect of the file.
pub(crate) fn layers(text: &str) -> Result<Vec<ModelLayer>, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    let events = file["traceEvents"].as_array().ok_or("traceEvents is missing")?;
    let sizes: BTreeMap<u64, u64> = events.iter().filter_map(size).collect();
    if sizes.is_empty() {
        return Err("it contains no bucket hook".to_owned());
    }
    let steps = steps(events);
    let measured: Vec<&StepTrace> = steps.iter().filter(|step| !step.backward.is_empty()).collect();
    if measured.is_empty() {
        return Err("it contains no backward pass after the first step".to_owned());
    }
    let forward = median(measured.iter().map(|step| step.forward).collect());
    let parts = parts(&measured, &sizes);
    let whole: f64 = parts.values().sum();
    let elements: u64 = sizes.values().sum();
    let layer = |(bucket, bytes): (&u64, &u64)| {
        let backward = parts[bucket];
        let share = if whole > 0.0 { backward / whole } else { *bytes as f64 / elements as f64 };
        ModelLayer {
            name: format!("bucket{bucket}"),
            elements: *bytes as usize / DType::F32.size(),
            backward: micros(backward),
            forward: micros(forward * share),
        }
    };
    // The first bucket has the gradients that are ready first, of the last layers.
    Ok(sizes.iter().rev().map(layer).collect())
}

/// Returns bucket and bytes of a hook.
fn size(event: &Value) -> Option<(u64, u64)> {
    let arguments = &event["args"];
    let bytes = arguments["bytes"].as_u64().filter(|bytes| *bytes >= DType::F32.size() as u64)?;
    Some((arguments["bucket"].as_u64()?, bytes))
}

/// Returns the work of each rank in each step, without the first.
fn steps(events: &[Value]) -> Vec<StepTrace> {
    let is_of_device = |event: &&Value| event["args"]["place"] == "device";
    let computes = events.iter().filter(is_of_device).filter(|event| event["name"] == "backward");
    let with_device: BTreeSet<Option<u64>> = computes.map(|event| event["pid"].as_u64()).collect();
    let counts = |event: &&Value| is_of_device(event) == with_device.contains(&event["pid"].as_u64());
    let mut steps: BTreeMap<(u64, u64), StepTrace> = BTreeMap::new();
    for event in events.iter().filter(counts) {
        let place = (event["args"]["step"].as_u64(), event["pid"].as_u64());
        let times = (event["ts"].as_f64(), event["dur"].as_f64());
        if let ((Some(number), Some(rank)), (Some(start), Some(length))) = (place, times) {
            steps.entry((number, rank)).or_default().add(event, start, length);
        }
    }
    let first = steps.keys().next().map_or(0, |(number, _)| *number);
    let only = steps.keys().all(|(number, _)| *number == first);
    let later = steps.into_iter().filter(|((number, _), _)| only || *number > first);
    later.map(|(_, step)| step).collect()
}

impl StepTrace {
    fn add(&mut self, event: &Value, start: f64, length: f64) {
        match event["name"].as_str() {
            Some("between steps" | "loading" | "loading and forward" | "forward") => self.forward += length,
            Some("backward") => self.backward.push([start, start + length]),
            Some("gradients_ready") => {
                if let Some(bucket) = event["args"]["bucket"].as_u64() {
                    self.ready.insert(bucket, start);
                }
            }
            _ => {}
        }
    }

    /// Returns the time of the backward passes.
    fn whole(&self) -> f64 {
        self.backward.iter().map(|[start, end]| end - start).sum()
    }

    /// Returns each bucket's part of the pass; none if no hook saw gradients.
    fn parts(&self) -> BTreeMap<u64, f64> {
        let mut ready: Vec<(u64, f64)> = self.ready.iter().map(|(bucket, start)| (*bucket, *start)).collect();
        ready.sort_by(|one, other| one.1.total_cmp(&other.1));
        let mut before = 0.0;
        let mut parts = BTreeMap::new();
        let last = ready.len().saturating_sub(1);
        for (at, (bucket, start)) in ready.into_iter().enumerate() {
            // After the last hook, the rest of the pass is work that no bucket waits for.
            let until = if at == last { self.whole() } else { self.passed(start) };
            parts.insert(bucket, until - before);
            before = until;
        }
        parts
    }

    /// Returns how much of the backward passes was over at a moment.
    fn passed(&self, moment: f64) -> f64 {
        self.backward.iter().map(|[start, end]| (moment.min(*end) - start).max(0.0)).sum()
    }
}

/// Returns the time of each bucket's part of the backward pass.
fn parts(steps: &[&StepTrace], sizes: &BTreeMap<u64, u64>) -> BTreeMap<u64, f64> {
    let seen: Vec<BTreeMap<u64, f64>> = steps.iter().map(|step| step.parts()).collect();
    let of_bucket = |bucket: &u64| -> Option<f64> {
        let times: Vec<f64> = seen.iter().filter_map(|parts| parts.get(bucket).copied()).collect();
        (!times.is_empty()).then(|| median(times))
    };
    let whole = median(steps.iter().map(|step| step.whole()).collect());
    let bytes: u64 = sizes.values().sum();
    let by_size = |own: u64| whole * own as f64 / bytes as f64;
    let found: Option<BTreeMap<u64, f64>> =
        sizes.keys().map(|bucket| Some((*bucket, of_bucket(bucket)?))).collect();
    found.unwrap_or_else(|| sizes.iter().map(|(bucket, own)| (*bucket, by_size(*own))).collect())
}

/// Returns the middle one of at least one value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn micros(time: f64) -> Duration {
    Duration::try_from_secs_f64(time / 1e6).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::algorithms::trace::{Kind, Place, RankTrace, Span, Trace};

    const MILLI: i64 = 1_000_000;

    /// A rank that makes steps of a forward pass, of a backward pass of 10 ms, and of a wait; in the first, everything
    /// takes longer. Its buckets of 4 000 and 8 000 bytes are ready after 3 and 8 ms.
    fn rank(hook: Kind, slower: i64) -> RankTrace {
        let mut spans = Vec::new();
        for step in 0..3u64 {
            let millis =
                |time: i64| MILLI * (100 * step as i64 + time * if step == 0 { 3 } else { 1 } * slower / 10);
            let mut add = |kind, bucket, bytes, start, end| {
                let start = millis(start);
                let end = millis(end);
                spans.push(Span { kind, place: Place::Host, step, bucket, bytes, start, end, sent: 0 });
            };
            add(Kind::Between, 0, 0, 0, 1);
            add(Kind::Forward, 0, 0, 1, 5);
            add(Kind::Backward, 0, 0, 5, 15);
            add(Kind::Waiting, 0, 0, 15, 30);
            add(hook, 0, 4_000, 8, 20);
            add(hook, 1, 8_000, 13, 30);
        }
        RankTrace { host: "a".into(), pid: 1, spans, dropped: 0, clock_error: Duration::ZERO }
    }

    fn read(ranks: Vec<RankTrace>) -> Result<Vec<ModelLayer>, String> {
        let mut text = Vec::new();
        Trace { algorithm: "bytegrad".to_owned(), buckets: Vec::new(), ranks }.write(&mut text).unwrap();
        layers(&String::from_utf8(text).unwrap())
    }

    /// Names, elements, and microseconds forwards and backwards.
    fn describe(layers: &[ModelLayer]) -> Vec<(String, usize, u128, u128)> {
        let micros = |time: Duration| time.as_micros();
        let told = |layer: &ModelLayer| {
            (layer.name.clone(), layer.elements, micros(layer.forward), micros(layer.backward))
        };
        layers.iter().map(told).collect()
    }

    #[test]
    fn buckets_take_the_time_between_their_hooks() {
        let layers = read(vec![rank(Kind::GradientsReady, 10), rank(Kind::GradientsReady, 10)]).unwrap();
        assert_eq!(
            describe(&layers),
            [("bucket1".to_owned(), 2000, 3500, 7000), ("bucket0".to_owned(), 1000, 1500, 3000)]
        );
    }

    #[test]
    fn a_devices_times_count_where_it_has_told_when_it_computed() {
        let of_device = rank(Kind::GradientsReady, 10).spans.into_iter();
        let mut enqueued = rank(Kind::GradientsReady, 1);
        enqueued.spans.extend(of_device.map(|span| Span { place: Place::Device, ..span }));
        let of_host = rank(Kind::GradientsReady, 10);
        assert_eq!(describe(&read(vec![enqueued]).unwrap()), describe(&read(vec![of_host]).unwrap()));
    }

    #[test]
    fn the_median_of_ranks_counts() {
        let ranks = [10, 10, 20].map(|slower| rank(Kind::GradientsReady, slower));
        assert_eq!(describe(&read(ranks.to_vec()).unwrap())[1].3, 3000);
    }

    #[test]
    fn without_hooks_that_see_gradients_parts_are_by_size() {
        let layers = read(vec![rank(Kind::AfterStep, 10)]).unwrap();
        let backward: Vec<u128> = describe(&layers).iter().map(|layer| layer.3).collect();
        assert_eq!(backward, [6666, 3333]);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_reason() {
        for (text, why) in [
            ("{", "it is not JSON"),
            ("{}", "traceEvents is missing"),
            (r#"{"traceEvents": []}"#, "no bucket hook"),
            (r#"{"traceEvents": [{"args": {"bucket": 0, "bytes": 8}}]}"#, "no backward pass"),
        ] {
            let said = layers(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
