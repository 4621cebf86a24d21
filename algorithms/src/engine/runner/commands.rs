//! Work of the communication thread between two steps; the training thread requests it and waits for it.

use super::{BucketLane, BucketTransfer, HookRunner, missing};
use crate::engine::precision::overflow::OverflowCheck;
use crate::engine::replica::Queues;
use crate::plugin::{AnyAlgorithm, Instance, MetricsCollector, Tensor};
use crate::trace::Recorder;
use hexagram_logical::asynchronous::Work as BackgroundWork;
use hexagram_logical::{Buffer, DType, Error, Result, TransportKind, drive};
use std::collections::VecDeque;
use std::sync::Arc;

impl HookRunner {
    /// Records from here on.
    pub(crate) fn begin_trace(&mut self, trace: Recorder) {
        self.comm.activity().record();
        self.trace = Some(trace);
    }

    /// Ends the recording; returns the recorded hooks and the background work.
    pub(crate) fn end_trace(&mut self) -> (Option<Recorder>, (Vec<BackgroundWork>, u64)) {
        (self.trace.take(), self.comm.activity().take())
    }

    /// Treats gradients that are not finite as an overflow, under algorithms that may refuse them.
    pub(crate) fn watch_overflows(&mut self) {
        self.skips_overflows = true;
    }

    /// Prioritizes the buckets that the next forward pass needs first, if an order is given.
    pub(crate) fn set_urgency(&mut self, order: Option<Vec<usize>>) {
        self.urgency = order;
    }

    /// Allocates the gradients and parameters of these buckets, in the memory best suited to the transport. Previous
    /// contents are lost.
    pub(crate) fn install(
        &mut self,
        algorithm: AnyAlgorithm,
        buckets: Vec<(DType, Arc<[Tensor]>)>,
        queues: &Queues,
        metrics: &MetricsCollector,
    ) -> Result<Vec<(Buffer, Option<Buffer>)>> {
        let parameters = algorithm.needs().parameters;
        let mut made = Vec::new();
        for (at, (dtype, tensors)) in buckets.iter().enumerate() {
            let len = tensors.last().map_or(0, |tensor| tensor.elements.end);
            self.takes_turns = self.comm.attach(queues.of(at))? == Some(TransportKind::Nccl);
            let make = || self.comm.registered_on(queues.of(at), *dtype, len);
            made.push((make()?, if parameters { Some(make()?) } else { None }));
        }
        self.open_lanes(algorithm, buckets.into_iter().map(|(_, tensors)| tensors), metrics);
        Ok(made)
    }

    /// Opens a lane for each of these buckets, without states yet. Previous lanes are closed.
    pub(crate) fn open_lanes(
        &mut self,
        algorithm: AnyAlgorithm,
        buckets: impl Iterator<Item = Arc<[Tensor]>>,
        metrics: &MetricsCollector,
    ) {
        let parameters = algorithm.needs().parameters;
        let lane = |(at, tensors)| BucketLane {
            comm: self.comm.lane(at),
            hierarchy: self.hierarchy.as_ref().map(|hierarchy| hierarchy.lane(at)),
            metrics: metrics.clone(),
            tensors,
            parameters,
            instance: None,
            memory: BucketTransfer::default(),
            waiting: VecDeque::new(),
            busy: false,
        };
        self.lanes = buckets.enumerate().map(lane).collect();
        self.works_after_backward = algorithm.written().after_backward;
        self.compares_rates = algorithm.keeps_replicas_identical() && algorithm.trigram().synchronous;
        self.overflows =
            if self.skips_overflows { OverflowCheck::of(&algorithm) } else { OverflowCheck::None };
        self.algorithm = Some(algorithm);
    }

    /// Ends the work of all ranks, because of an error in the framework of this rank.
    pub(crate) fn give_up(&self, error: &Error) {
        self.comm.give_up(error);
    }

    /// Applies other settings, between two steps.
    pub(crate) async fn tune(&mut self, streams: usize, hierarchical: bool) -> Result<()> {
        self.streams = streams.max(1);
        self.hierarchy = match (hierarchical, self.hierarchy.take()) {
            (true, None) => Some(drive::run(self.comm.endpoint(), self.comm.hierarchy()).await?),
            (true, hierarchy) => hierarchy,
            (false, _) => None,
        };
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.hierarchy = self.hierarchy.as_ref().map(|hierarchy| hierarchy.lane(at));
        }
        Ok(())
    }

    /// Returns the state of the algorithm for each bucket, between two steps.
    pub(crate) fn instances(&mut self) -> Result<Vec<&mut Box<dyn Instance>>> {
        self.lanes.iter_mut().map(|lane| lane.instance.as_mut().ok_or_else(missing)).collect()
    }
}
