//! One GPU in this process: its primary context, and the state that the device's queues share.

use super::arithmetic;
use super::driver::devices::{Attribute, Description, attribute, describe, device, peers_of};
use super::driver::handle::{ContextHandle, EventHandle, PoolHandle, StreamHandle};
use super::driver::library::{Driver, driver};
use super::driver::modules::Loaded;
use super::driver::status::is_final;
use super::driver::{devices, library};
use super::kinds::{self, Kinds};
use super::pool::PinnedPool;
use super::streams::sweeper::{InFlight, Sweeper};
use super::streams::timestamp::GpuClock;
use crate::error::{Error, Result};
use crate::waiting::lock::lock;
use cudarc::driver::sys::{
    self, CUdevice, CUevent_flags, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute, CUmemPoolProps, CUresult, CUstream_flags, CUstreamCaptureMode,
};
use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::{Duration, Instant};

/// A GPU that is in use by this process.
pub(crate) struct Gpu {
    pub(crate) driver: &'static Driver,
    /// Name in messages: `cuda:0`.
    pub(crate) name: String,
    pub(crate) about: Description,
    /// Number of the GPU in the driver's order.
    pub(crate) device: CUdevice,
    /// The context of the device, shared by all libraries of a process.
    pub(crate) context: ContextHandle,
    /// Memory that is allocated and freed in the order of a stream, unless the driver cannot do so. It is not the pool that
    /// other libraries use.
    pub(super) pool: Option<PoolHandle>,
    /// The error after which the device is lost.
    lost: OnceLock<Error>,
    /// Streams that there are.
    pub(super) streams: Mutex<Vec<Weak<dyn InFlight>>>,
    /// Unused events of the driver, without times.
    events: Mutex<Vec<EventHandle>>,
    pub(super) clock: GpuClock,
    pub(super) loaded: Loaded,
    pub(super) kinds: Kinds,
    /// Memory of the device that was freed; stays empty where the driver keeps it itself.
    pub(super) freed: PinnedPool,
    /// Unused memory of the device that was shared with other processes.
    pub(super) lent: PinnedPool,
    /// Unused pinned memory of the host.
    pub(super) pinned: PinnedPool,
    pub(super) sweeper: Arc<Sweeper>,
    /// Held shared to enqueue, and exclusively to free memory that the driver frees only after all work.
    pub(super) enqueuing: RwLock<()>,
}

impl Gpu {
    /// Returns the GPU with this number. All callers share it, as long as one of them keeps it.
    ///
    /// # Errors
    /// As [`driver`]; [`Error::Usage`] if there are fewer GPUs; [`Error::System`] if the driver refuses.
    pub(super) fn get(index: usize) -> Result<Arc<Self>> {
        static USED: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());
        let mut used = lock(&USED);
        used.retain(|gpu| gpu.strong_count() > 0);
        let found = used.iter().filter_map(Weak::upgrade).find(|gpu| gpu.about.index == index);
        if let Some(gpu) = found {
            return Ok(gpu);
        }
        let gpu = Arc::new(Self::open(index)?);
        used.push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    fn open(index: usize) -> Result<Self> {
        let driver = driver()?;
        let device = device(index)?;
        let about = describe(index, device)?;
        let has_pools = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;
        let sweeper = Sweeper::start()?;
        let mut context = ContextHandle::NONE;
        // SAFETY: the pointer is valid for a write of one handle.
        let status = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context.0, device) };
        library::expect(status, &format!("open cuda:{index}")).inspect_err(|_| sweeper.end())?;
        sweeper.end_with_process();
        let mut gpu = Gpu {
            driver,
            name: format!("cuda:{index}"),
            about,
            device,
            context,
            pool: None,
            lost: OnceLock::new(),
            streams: Mutex::default(),
            events: Mutex::default(),
            clock: GpuClock::default(),
            loaded: Loaded::default(),
            kinds: Kinds::default(),
            freed: PinnedPool::default(),
            lent: PinnedPool::default(),
            pinned: PinnedPool::default(),
            sweeper,
            enqueuing: RwLock::default(),
        };
        if has_pools {
            gpu.pool = Some(gpu.create_pool()?);
        }
        // Programs that are launched while other ranks may wait for the stream.
        arithmetic::MODULES
            .into_iter()
            .chain([&kinds::CARRY])
            .try_for_each(|module| gpu.prepare_module(module))?;
        Ok(gpu)
    }

    /// Creates a pool that keeps freed memory for the next allocation, instead of returning it whenever a thread
    /// synchronises. If the pool is empty, an allocation fails and does not wait for another stream's work: through
    /// another rank, that work may wait for this stream.
    fn create_pool(&self) -> Result<PoolHandle> {
        let _current = self.enter()?;
        let mut pool = PoolHandle::NONE;
        // SAFETY: the pointer is valid for a write of one handle, and the properties are valid.
        let status = unsafe { sys::cuMemPoolCreate(&mut pool.0, &pool_of(self.device)) };
        self.expect(status, "create a memory pool")?;
        let mut threshold = u64::MAX;
        let mut may_wait: c_int = 0;
        let attributes: [(CUmemPool_attribute, *mut c_void); 2] = [
            (CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut threshold).cast()),
            (
                CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                (&raw mut may_wait).cast(),
            ),
        ];
        for (attribute, value) in attributes {
            // SAFETY: the pointers are valid, the first for a number of 64 bits, the second for one of 32.
            let status = unsafe { sys::cuMemPoolSetAttribute(pool.0, attribute, value) };
            self.expect(status, "set up the memory pool")?;
        }
        Ok(pool)
    }

    /// Makes the context current on this thread until the value is dropped. Also permits calls on this thread that are not part
    /// of the graph captures of other libraries. Otherwise the driver refuses these calls, and invalidates the captures.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses, or has lost the device.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        let mut before = ContextHandle::NONE;
        // If another library has destroyed its context, this fails, and no context is restored.
        // SAFETY: the pointer is valid for a write of one handle.
        unsafe { sys::cuCtxGetCurrent(&mut before.0) };
        if before != self.context {
            // SAFETY: the context is retained as long as this lives.
            let status = unsafe { sys::cuCtxSetCurrent(self.context.0) };
            self.expect(status, "make the context current")?;
        }
        let mut entered =
            Entered { gpu: self, before, mode: CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32 };
        // SAFETY: the pointer is valid for a read and a write of one number.
        let status = unsafe { sys::cuThreadExchangeStreamCaptureMode((&raw mut entered.mode).cast()) };
        self.expect(status, "work during graph captures of other libraries")?;
        Ok(entered)
    }

    /// Passes success on, and turns anything else into an error about `what`; notes an error after which the device
    /// is lost.
    ///
    /// # Errors
    /// [`Error::System`] unless the status is success.
    pub(crate) fn expect(&self, status: CUresult, doing: &str) -> Result<()> {
        match library::expect(status, &format!("{doing} on {}", self.name)) {
            Err(error) if is_final(status) => Err(self.lose(error)),
            outcome => outcome,
        }
    }

    /// Marks the device as lost, and returns its first fatal error.
    pub(super) fn lose(&self, error: Error) -> Error {
        let first = self.lost.get_or_init(|| error).clone();
        self.sweeper.hurry();
        first
    }

    /// Returns the error after which the device is lost, if any.
    pub(crate) fn lost(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// Returns the domain and the bus on which this GPU is, and its number there. Slices of a GPU have these in common.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub(super) fn place(&self) -> Result<[c_int; 3]> {
        let of = |which| attribute(self.device, which);
        let domain = of(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = of(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        Ok([domain, bus, of(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?])
    }

    /// Returns the identities of the other GPUs that this process sees whose memory this one reads directly.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub(super) fn reaches(&self) -> Result<Vec<[u8; 16]>> {
        let peers = peers_of(self.about.index)?.into_iter();
        peers.map(|peer| Ok(describe(peer, device(peer)?)?.uuid)).collect()
    }

    /// Gives this GPU access to the memory of the GPU in this process with this identity.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub(crate) fn reach(&self, uuid: [u8; 16]) -> Result<()> {
        if uuid == self.about.uuid {
            return Ok(());
        }
        let other = devices::all()?.into_iter().find(|other| other.uuid == uuid);
        let Some(other) = other else { return Ok(()) };
        let other = Gpu::get(other.index)?;
        let _current = self.enter()?;
        // SAFETY: both contexts are valid.
        let status = unsafe { sys::cuCtxEnablePeerAccess(other.context.0, 0) };
        if status == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        self.expect(status, &format!("reach the memory of {}", other.name))
    }

    /// Returns how much memory of the device is free, and how much it has in all, in bytes.
    pub(super) fn free_memory(&self) -> Result<(usize, usize)> {
        let _current = self.enter()?;
        let mut free = 0;
        let mut all = 0;
        // SAFETY: the pointers are valid for a write of one number each.
        let status = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut all) };
        self.expect(status, "ask for the free memory")?;
        Ok((free, all))
    }

    /// Creates a stream of the driver that does not implicitly wait for other streams.
    pub(super) fn create_stream(&self) -> Result<StreamHandle> {
        let _current = self.enter()?;
        let mut stream = StreamHandle::NONE;
        // SAFETY: the pointer is valid for a write of one handle.
        let status =
            unsafe { sys::cuStreamCreate(&mut stream.0, CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        self.expect(status, "create a stream")?;
        Ok(stream)
    }

    /// Returns an unused event of the driver.
    pub(super) fn event(&self) -> Result<EventHandle> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        self.create_event(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event of the driver; the context must be current.
    pub(super) fn create_event(&self, flags: CUevent_flags) -> Result<EventHandle> {
        let mut event = EventHandle::NONE;
        // SAFETY: the pointer is valid for a write of one handle.
        let status = unsafe { sys::cuEventCreate(&mut event.0, flags as u32) };
        self.expect(status, "create an event")?;
        Ok(event)
    }

    /// Waits until the work of all streams is done, or until `at_most` has passed.
    pub(super) fn wait(&self, at_most: Duration) {
        let begun = Instant::now();
        // They are waited for, and dropped, while the list is unlocked.
        let streams: Vec<_> = lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        for stream in streams {
            stream.wait(at_most.saturating_sub(begun.elapsed()));
        }
    }

    /// Frees kept memory if the driver has no work in flight that this might wait for: a stream may wait for a rank
    /// that waits for this thread.
    pub(crate) fn if_idle(&self, free: fn(&Self)) {
        // No thread enqueues during this: that needs the lock.
        if let Ok(_alone) = self.enqueuing.try_write()
            && self.sweeper.is_idle()
        {
            free(self);
        }
    }

    /// Returns unused memory of the pool to the device; the context must be current. Does not wait.
    pub(super) fn trim_pool(&self) {
        if let Some(pool) = self.pool {
            // SAFETY: the pool is valid. Memory in use stays.
            unsafe { sys::cuMemPoolTrimTo(pool.0, 0) };
        }
    }

    /// Frees the memory kept for later; the context must be current. May wait for all work of the device.
    pub(super) fn free_kept(&self) {
        self.trim_pool();
        self.free(&self.freed);
        self.free(&self.lent);
        self.free_pinned();
    }

    /// Frees pinned memory kept for later; the context must be current. May wait for all work of the device.
    pub(crate) fn free_pinned(&self) {
        for address in self.pinned.drain() {
            // SAFETY: `cuMemHostAlloc` allocated it, and it is not in use.
            unsafe { sys::cuMemFreeHost(with_exposed_provenance_mut(address)) };
        }
    }

    /// Frees kept memory; the context must be current. Waits for the device.
    fn free(&self, kept: &PinnedPool) {
        for address in kept.drain() {
            // SAFETY: `cuMemAlloc` allocated it, and it is not in use.
            unsafe { sys::cuMemFree_v2(address as u64) };
        }
    }

    /// Returns true once an event has happened, or if the device is lost.
    pub(super) fn has_happened(&self, event: EventHandle) -> bool {
        if self.lost().is_some() {
            return true;
        }
        let query = |_current| {
            // SAFETY: the event is valid, and was recorded.
            let status = unsafe { sys::cuEventQuery(event.0) };
            if status == CUresult::CUDA_ERROR_NOT_READY {
                return Ok(false);
            }
            library::expect(status, &format!("continue the work of {}", self.name)).map(|()| true)
        };
        // Otherwise waiting threads would never continue.
        self.enter().and_then(query).unwrap_or_else(|error| {
            self.lose(error);
            true
        })
    }

    /// Takes an event back. Queues that still wait for it keep waiting.
    pub(super) fn give_back(&self, event: EventHandle) {
        lock(&self.events).push(event);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.sweeper.end();
        // On a lost device these fail, and nothing is left to free.
        if let Ok(_current) = self.enter() {
            self.loaded.unload();
            for event in lock(&self.events).drain(..) {
                // SAFETY: the driver made it, and it is not in use.
                unsafe { sys::cuEventDestroy_v2(event.0) };
            }
            self.clock.destroy();
            self.free_kept();
            if let Some(pool) = self.pool {
                // SAFETY: the driver made it, and the free of all its memory is at least enqueued.
                unsafe { sys::cuMemPoolDestroy(pool.0) };
            }
        }
        // SAFETY: it was retained once, and all objects in it are destroyed.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Returns the properties of a pool in the memory of a device, which no other process shares.
fn pool_of(device: CUdevice) -> CUmemPoolProps {
    // SAFETY: zeros are a value of every field, in all versions of CUDA, and mean that the program sets no value.
    let mut pool: CUmemPoolProps = unsafe { std::mem::zeroed() };
    pool.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    // The type, and a number of 32 bits, which is in a union from CUDA 13.2 on.
    const _: () = assert!(size_of::<CUmemLocation>() == 8 && align_of::<CUmemLocation>() == 4);
    let place = [CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int, device];
    // SAFETY: the place has this layout, and the type is one of its enum.
    unsafe { (&raw mut pool.location).cast::<[c_int; 2]>().write(place) };
    pool
}

/// A thread with a current GPU context. On drop, the thread gets its earlier context back.
pub(crate) struct Entered<'a> {
    gpu: &'a Gpu,
    /// The earlier context: another library's, this one, or null.
    before: ContextHandle,
    /// Mode of the thread's calls during graph captures.
    mode: u32,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: the pointer is valid for a read and a write of one number.
        unsafe { sys::cuThreadExchangeStreamCaptureMode((&raw mut self.mode).cast()) };
        if self.before != self.gpu.context {
            // SAFETY: it was current before, or is null.
            unsafe { sys::cuCtxSetCurrent(self.before.0) };
        }
    }
}
