//! The communication thread: runs the hooks of the algorithm while the training thread computes.
//!
//! Every bucket has a lane: its hooks run one after another, concurrently with those of other buckets; a slow bucket
//! does not delay the next. Hooks start stage by stage, and in plan order within a stage, whatever the order in which
//! buckets become complete, since that order may differ between ranks: with fewer streams than buckets, two ranks that
//! started different hooks would deadlock.
//!
//! If the next forward pass begins while buckets are in progress, those that it needs first have priority: of the hooks
//! that have begun, only the most urgent continue (`urgency`).
//!
//! `scheduler` is the training thread's handle of this thread; `commands` are the requests that it handles between
//! steps.

mod algorithm_state;
mod commands;
mod scheduler;
mod stage;
mod urgency;

pub(super) use scheduler::Scheduler;
pub(super) use stage::HookStage;

use super::plan::name_tensor;
use super::precision::overflow::{self, OverflowCheck};
use super::trace::{OpenHook, hook_begins, hook_ends};
use crate::plugin::{AnyAlgorithm, Bucket, Context, Instance, MetricsCollector, Slots, StepInfo, Tensor};
use crate::trace::Recorder;
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use hexagram_logical::drive::{self, Wait};
use hexagram_logical::{Bell, Buffer, Communicator, Error, Hierarchy, Queue, Result, runtime};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Polling, Poll};

/// Request of the training thread to the communication thread.
pub(super) enum RunnerRequest {
    /// Hook of a bucket, with memory that it needs and this thread does not own yet.
    Hook { stage: HookStage, bucket: usize, memory: BucketTransfer, present: StepInfo },
    /// Work between two steps.
    Call(RunnerCall),
}

pub(super) type RunnerCall =
    Box<dyn for<'a> FnOnce(&'a mut HookRunner) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> + Send>;

/// Memory of a bucket, in transfer between the threads; `None` for parts that are not transferred.
#[derive(Default)]
pub(super) struct BucketTransfer {
    pub(super) gradients: Option<Buffer>,
    pub(super) parameters: Option<Buffer>,
    /// Memory of the optimizer, for an algorithm that [reads](AnyAlgorithm::reads_slots) it after a step.
    pub(super) slots: Option<Slots>,
    /// True if gradients of some rank are not finite; all ranks have NaN then.
    pub(super) overflowed: bool,
}

impl BucketTransfer {
    /// Returns one of the buffers of the bucket; all have the same layout.
    fn buffer(&self) -> Option<&Buffer> {
        self.gradients.as_ref().or(self.parameters.as_ref())
    }

    /// Returns the size of the bucket, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.buffer().map_or(0, |buffer| buffer.len() * buffer.dtype().size())
    }
}

/// Bucket whose hooks are done.
pub(super) type FinishedBucket = Result<(usize, BucketTransfer)>;

/// Sender of requests to the communication thread.
#[derive(Clone)]
pub(super) struct Requests {
    /// Sending end; `None` after the scheduler was dropped.
    sender: Arc<Mutex<Option<Sender<RunnerRequest>>>>,
    bell: Arc<dyn Bell>,
}

impl Requests {
    pub(super) fn new(sender: Sender<RunnerRequest>, bell: Arc<dyn Bell>) -> Self {
        Requests { sender: Arc::new(Mutex::new(Some(sender))), bell }
    }

    fn sender(&self) -> MutexGuard<'_, Option<Sender<RunnerRequest>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, request: RunnerRequest) -> Result<()> {
        let sender = self.sender();
        let Some(sender) = &*sender else {
            return Err(Error::usage("the engine is gone", "keep DataParallel while its hooks are in use"));
        };
        // A thread that has ended has reported why; `Scheduler::wait` returns it.
        let _ = sender.send(request);
        self.bell.ring();
        Ok(())
    }

    /// Closes the channel, which ends the communication thread.
    pub(super) fn close(&self) {
        *self.sender() = None;
        self.bell.ring();
    }
}

/// Name of the algorithm in errors about its panics.
pub(super) const PLUGIN: &str = "the algorithm";

/// Number of polls of ready hooks after which all hooks are polled.
const ROUNDS: u32 = 64;

/// Hook in progress, which owns its data and gives it back.
type Hook = Pin<Box<dyn Future<Output = FinishedHook>>>;

struct FinishedHook {
    outcome: Result<()>,
    instance: Option<Box<dyn Instance>>,
    memory: BucketTransfer,
}

struct RunningHook {
    bucket: usize,
    stage: HookStage,
    hook: Hook,
    /// True after its first poll.
    begun: bool,
    /// Span of the hook, while a trace is recorded.
    span: Option<OpenHook>,
}

/// State of one bucket on this thread.
struct BucketLane {
    comm: Communicator,
    hierarchy: Option<Hierarchy>,
    metrics: MetricsCollector,
    tensors: Arc<[Tensor]>,
    /// True if hooks receive parameters.
    parameters: bool,
    /// State of the algorithm for the bucket; `None` while a hook owns it, and before the first hook.
    instance: Option<Box<dyn Instance>>,
    /// Memory of the bucket that no hook in progress owns.
    memory: BucketTransfer,
    waiting: VecDeque<(HookStage, StepInfo)>,
    busy: bool,
}

/// Runner of the hooks, between the training thread and the transport.
pub(super) struct HookRunner {
    comm: Communicator,
    hierarchy: Option<Hierarchy>,
    streams: usize,
    /// True if hooks run one by one: NCCL runs collectives in the order of their calls, which would depend on timing if
    /// hooks with several calls ran concurrently.
    takes_turns: bool,
    algorithm: Option<AnyAlgorithm>,
    /// True if the algorithm implements the hook after the backward pass: buckets then stay here for it.
    works_after_backward: bool,
    /// True if replicas would diverge silently if ranks stepped with different learning rates.
    compares_rates: bool,
    /// True if the engine options request it.
    skips_overflows: bool,
    /// Treatment of gradients that are not finite, before a hook that would refuse them.
    overflows: OverflowCheck,
    lanes: Vec<BucketLane>,
    running: Vec<RunningHook>,
    /// Hooks to start, in the order in which every rank starts them.
    upcoming: VecDeque<(HookStage, usize)>,
    /// Number of buckets that have arrived for the last upcoming stage.
    arrived: usize,
    outgoing: Sender<FinishedBucket>,
    /// For each bucket, its place in the order of the next forward pass, smaller numbers first; `None` without
    /// priorities.
    urgency: Option<Vec<usize>>,
    /// Buckets whose hooks can continue, if the endpoint reports them; kept to reuse its memory.
    ready: Vec<usize>,
    /// Number of polls of hooks.
    polls: u32,
    trace: Option<Recorder>,
}

impl HookRunner {
    pub(super) fn new(
        comm: Communicator,
        hierarchy: Option<Hierarchy>,
        streams: usize,
        outgoing: Sender<FinishedBucket>,
    ) -> Self {
        let lanes = Vec::new();
        let running = Vec::new();
        HookRunner {
            comm,
            hierarchy,
            streams,
            takes_turns: false,
            algorithm: None,
            works_after_backward: false,
            compares_rates: false,
            skips_overflows: false,
            overflows: OverflowCheck::None,
            lanes,
            running,
            upcoming: VecDeque::new(),
            arrived: 0,
            outgoing,
            urgency: None,
            ready: Vec::new(),
            polls: 0,
            trace: None,
        }
    }

    /// Runs until the training thread is gone or a hook fails.
    pub(super) async fn run(mut self, incoming: &Receiver<RunnerRequest>) {
        drive::beside_computation();
        let mut wait = Wait::default();
        loop {
            let is_idle = self.running.is_empty();
            // A dedicated thread has no other work; a task must not block the others.
            let arrived = if is_idle && !runtime::is_replaced() {
                incoming.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                incoming.try_recv()
            };
            let has_arrived = arrived.is_ok();
            let outcome = match arrived {
                Ok(request) => self.take(request).await,
                Err(TryRecvError::Empty) => Ok(()),
                // Dropping the running hooks poisons the communicator, which notifies the other ranks.
                Err(TryRecvError::Disconnected) => return,
            };
            if let Err(error) = outcome.and_then(|()| self.poll()) {
                self.comm.give_up(&error);
                let _ = self.outgoing.send(Err(error));
                return;
            }
            // Another request may follow the first, without another notification.
            if !has_arrived {
                wait.rest(self.comm.endpoint()).await;
            }
        }
    }

    async fn take(&mut self, request: RunnerRequest) -> Result<()> {
        match request {
            RunnerRequest::Call(work) => work(self).await,
            RunnerRequest::Hook { stage, bucket, memory, present } => {
                self.arrive(stage, bucket, memory, present);
                self.start();
                Ok(())
            }
        }
    }

    /// Takes a bucket that has arrived for a stage. Buckets arrive for one stage after another, and within a stage in
    /// any order.
    fn arrive(&mut self, stage: HookStage, bucket: usize, memory: BucketTransfer, present: StepInfo) {
        let buckets = self.lanes.len();
        if self.arrived == 0 {
            self.upcoming.extend((0..buckets).map(|bucket| (stage, bucket)));
        }
        let lane = &mut self.lanes[bucket];
        lane.memory.gradients = memory.gradients.or(lane.memory.gradients.take());
        lane.memory.parameters = memory.parameters.or(lane.memory.parameters.take());
        lane.memory.slots = memory.slots;
        lane.waiting.push_back((stage, present));
        self.arrived = (self.arrived + 1) % buckets;
        if stage == HookStage::Gradients && self.arrived == 0 && self.works_after_backward {
            self.upcoming.extend((0..buckets).map(|bucket| (HookStage::Backward, bucket)));
            self.lanes.iter_mut().for_each(|lane| lane.waiting.push_back((HookStage::Backward, present)));
        }
    }

    /// Returns the number of hooks that may run at the same time.
    fn streams(&self) -> usize {
        if self.takes_turns { 1 } else { self.streams }
    }

    /// Starts the next hooks, up to the number of streams.
    fn start(&mut self) {
        while let Some((stage, bucket)) = self.upcoming.front().copied()
            && self.running.len() < self.streams()
        {
            if stage == HookStage::Start && !self.running.is_empty() {
                return;
            }
            let lane = &mut self.lanes[bucket];
            let Some((_, present)) =
                lane.waiting.front().copied().filter(|(next, _)| *next == stage && !lane.busy)
            else {
                return;
            };
            lane.waiting.pop_front();
            lane.busy = true;
            self.upcoming.pop_front();
            let rate = present.compared_rate.or(present.learning_rate).filter(|_| self.compares_rates);
            let hierarchy = lane.hierarchy.as_ref().map(|hierarchy| hierarchy.with_learning_rate(rate));
            let metrics = lane.metrics.clone();
            let queue = lane.memory.buffer().map_or_else(Queue::host, Buffer::queue);
            let elements = lane.memory.buffer().map_or(0, Buffer::len);
            let comm = lane.comm.with_learning_rate(rate);
            let bytes = lane.memory.bytes();
            let span = self.trace.as_ref().map(|t| hook_begins(t, stage, present, bucket, bytes, &queue));
            let context = Context { comm, hierarchy, bucket, present, metrics, queue, elements };
            let call = HookCall {
                algorithm: self.algorithm.clone(),
                tensors: Arc::clone(&lane.tensors),
                parameters: lane.parameters,
                overflows: self.overflows,
                instance: lane.instance.take(),
                memory: std::mem::take(&mut lane.memory),
            };
            let hook = Box::pin(call.hook(stage, context));
            self.running.push(RunningHook { bucket, stage, hook, begun: false, span });
        }
    }

    /// Polls the hooks that can continue, and hands back the buckets that are done.
    fn poll(&mut self) -> Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let knows = self.comm.endpoint().take_ready(&mut ready);
        self.polls = self.polls.wrapping_add(1);
        // A park that ends by its timeout makes no hook ready, and deadlines are noticed only by a poll.
        let all = !knows || ready.is_empty() || self.puts_off() || self.polls.is_multiple_of(ROUNDS);
        let outcome = self.poll_those(|running| all || !running.begun || ready.contains(&running.bucket));
        self.ready = ready;
        outcome
    }

    /// Polls every hook that `may_go_on`, unless it must wait for more urgent ones.
    fn poll_those(&mut self, may_go_on: impl Fn(&RunningHook) -> bool) -> Result<()> {
        let waker = drive::waker();
        let mut polling = Polling::from_waker(&waker);
        let mut at = 0;
        while at < self.running.len() {
            if self.must_wait(at) || !may_go_on(&self.running[at]) {
                at += 1;
                continue;
            }
            let running = &mut self.running[at];
            running.begun = true;
            let bucket = running.bucket;
            let hook = &mut running.hook;
            // Here, not at the end of the thread: the other ranks receive the reason before they miss a message.
            let poll = AssertUnwindSafe(|| hook.as_mut().poll(&mut polling));
            let polled = drive::numbered(bucket, || catch_unwind(poll));
            let Poll::Ready(finished) = polled.map_err(|p| Error::panicked(PLUGIN, &*p))? else {
                at += 1;
                continue;
            };
            // Keeps the order, so that hooks also run in the order in which they were started.
            let RunningHook { bucket, stage, span, .. } = self.running.remove(at);
            if let Some(trace) = &mut self.trace {
                hook_ends(trace, span, &self.comm);
            }
            self.hand_back(bucket, stage, finished)?;
            self.start();
            // A hook that had to wait may now continue.
            at = if self.puts_off() { 0 } else { at };
        }
        self.put_in_order();
        Ok(())
    }

    /// Takes back the data of a hook, and hands it to the training thread unless the next hook of the bucket needs it
    /// here.
    fn hand_back(&mut self, bucket: usize, stage: HookStage, finished: FinishedHook) -> Result<()> {
        let FinishedHook { outcome, instance, memory } = finished;
        let lane = &mut self.lanes[bucket];
        // A device reports an error late, perhaps for another bucket: then the error names no tensor, rather than a
        // wrong one.
        let buffer = memory.gradients.as_ref().or(memory.parameters.as_ref());
        let is_own = buffer.is_some_and(|buffer| buffer.queue().is_host());
        outcome.map_err(|error| if is_own { name_tensor(&lane.tensors, error) } else { error })?;
        lane.instance = instance;
        lane.busy = false;
        // Memory that has arrived meanwhile is newer.
        lane.memory.gradients = lane.memory.gradients.take().or(memory.gradients);
        lane.memory.parameters = lane.memory.parameters.take().or(memory.parameters);
        lane.memory.slots = lane.memory.slots.take().or(memory.slots);
        lane.memory.overflowed |= memory.overflowed;
        let stays =
            stage == HookStage::Forward || (stage == HookStage::Gradients && self.works_after_backward);
        if !stays {
            runtime::catch_up();
            let _ = self.outgoing.send(Ok((bucket, std::mem::take(&mut lane.memory))));
        }
        Ok(())
    }
}

/// Arguments of a hook, which owns them while it runs.
struct HookCall {
    algorithm: Option<AnyAlgorithm>,
    tensors: Arc<[Tensor]>,
    parameters: bool,
    overflows: OverflowCheck,
    instance: Option<Box<dyn Instance>>,
    memory: BucketTransfer,
}

impl HookCall {
    async fn hook(mut self, stage: HookStage, context: Context) -> FinishedHook {
        let outcome = match stage {
            HookStage::Forward => self.forward(&context).await,
            _ => self.with_bucket(stage, &context).await,
        };
        FinishedHook { outcome, instance: self.instance, memory: self.memory }
    }

    async fn forward(&mut self, context: &Context) -> Result<()> {
        match (&mut self.instance, &self.memory.parameters) {
            (Some(instance), Some(parameters)) => instance.before_forward(context, parameters).await,
            _ => Err(missing()),
        }
    }

    async fn with_bucket(&mut self, stage: HookStage, context: &Context) -> Result<()> {
        let Some(gradients) = self.memory.gradients.take() else { return Err(missing()) };
        let parameters = match self.memory.parameters.take() {
            Some(parameters) => parameters,
            None if self.parameters => return Err(missing()),
            None => gradients.zeroed_same_device(gradients.dtype(), 0)?,
        };
        let mut slots = self.memory.slots.take();
        let mut overflowed = self.memory.overflowed;
        let mut bucket = Bucket { gradients, parameters, tensors: Arc::clone(&self.tensors) };
        match self.overflows {
            OverflowCheck::Shared if stage == HookStage::Gradients => {
                overflowed = overflow::somewhere(context.comm(), &bucket.gradients).await?;
            }
            OverflowCheck::Refused if stage == HookStage::Gradients => overflow::check(context, &bucket)?,
            _ => {}
        }
        let outcome = match (stage, &mut self.instance, &self.algorithm) {
            (HookStage::Start, none, Some(algorithm)) => {
                let made = algorithm.instance(context, &bucket).await;
                made.map(|instance| *none = Some(instance))
            }
            (HookStage::Evaluate, Some(instance), _) => instance.evaluated(context, &mut bucket).await,
            (HookStage::Gradients | HookStage::Backward, ..) if overflowed => {
                overflow::show(&bucket.gradients)
            }
            (HookStage::Gradients, Some(instance), _) => instance.gradients_ready(context, &mut bucket).await,
            (HookStage::Backward, Some(instance), _) => instance.after_backward(context, &mut bucket).await,
            (HookStage::Step, Some(instance), _) => {
                let seen = match &mut slots {
                    Some(slots) => instance.slots_ready(context, &mut bucket, slots).await,
                    None => Ok(()),
                };
                match seen {
                    Ok(()) => instance.after_step(context, &mut bucket).await,
                    Err(error) => Err(error),
                }
            }
            (HookStage::Settle, Some(instance), _) => instance.settle(context, &mut bucket).await,
            _ => Err(missing()),
        };
        let parameters = self.parameters.then_some(bucket.parameters);
        self.memory = BucketTransfer { gradients: Some(bucket.gradients), parameters, slots, overflowed };
        outcome
    }
}

fn missing() -> Error {
    Error::usage("a hook was requested before its bucket", "report this defect of the engine")
}
