//! Programs on a stream: launches with their arguments filled in.

use super::memory::DeviceAllocation;
use super::streams::stream::{CudaStream, StreamTail};
use crate::device::operations::program::{Argument, Launch, Module, Program};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// Argument of a launch as the driver copies it. The largest is the one for refusals.
type LaunchValue = [u64; 3];

/// Operands of a program as its launches need them.
#[derive(Default)]
pub(super) struct Filled<'a> {
    /// Addresses of the inputs, then of the outputs.
    pub(super) operands: &'a [u64],
    /// Name of the owner of the program.
    pub(super) codec: &'a str,
    /// Number of elements of the memory before those of the first operand.
    pub(super) before: u64,
}

impl CudaStream {
    /// Enqueues the launches of a program; the context must be current. Its modules are
    /// [prepared](super::gpu::Gpu::prepare), so the driver's compiler does not run while the stream is locked.
    pub(super) fn launch(&self, tail: &mut StreamTail, program: &Program, filled: &Filled<'_>) -> Result<()> {
        let scratch = self.scratch(tail, program.scratch)?;
        for launch in &program.launches {
            let values = launch.arguments.iter().map(|argument| match *argument {
                Argument::Operand(number) => filled.operand(launch, number, 0),
                Argument::OperandAt(number, bytes) => filled.operand(launch, number, bytes as u64),
                Argument::Scratch(offset) => Ok([scratch + offset as u64, 0, 0]),
                Argument::Refusing => self.refusing(tail, filled.codec, program.damage, filled.before),
                Argument::RefusingAt(first) => {
                    self.refusing(tail, filled.codec, program.damage, filled.before + first)
                }
                Argument::U32(number) => Ok([number.into(), 0, 0]),
                Argument::U64(number) => Ok([number, 0, 0]),
                Argument::F32(number) => Ok([number.to_bits().into(), 0, 0]),
                Argument::F64(number) => Ok([number.to_bits(), 0, 0]),
            });
            let values = values.collect::<Result<Vec<LaunchValue>>>()?;
            self.start(program.module, launch, values)?;
        }
        program.then.iter().try_for_each(|program| self.launch(tail, program, filled))
    }

    fn start(&self, module: &'static Module, launch: &Launch, mut values: Vec<LaunchValue>) -> Result<()> {
        let gpu = &self.gpu;
        let function = gpu.function(module, launch)?;
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        let Launch { blocks, threads, .. } = *launch;
        // SAFETY: the function and the stream are valid. Each parameter has a place of its size, lowest bytes first,
        // as `taking` has checked. Kernels are responsible for their use of addresses.
        let status = unsafe {
            sys::cuLaunchKernel(
                function.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.handle.0,
                places.as_mut_ptr(),
                null_mut(),
            )
        };
        gpu.expect(status, &format!("launch {}", launch.entry))
    }

    /// Returns the address of scratch memory, which earlier work may still use.
    fn scratch(&self, tail: &mut StreamTail, bytes: usize) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        if let Some(room) = tail.scratch.as_ref().filter(|room| room.bytes >= bytes) {
            return Ok(room.address);
        }
        let room = DeviceAllocation::at_once(self, bytes)?;
        let address = room.address;
        if let Some(smaller) = tail.scratch.replace(room) {
            tail.hold(smaller);
        }
        Ok(address)
    }

    /// Allocates the scratch memory of a program before it is enqueued. If memory runs out, the wait for it happens
    /// without the stream's lock.
    ///
    /// # Errors
    /// As [`DeviceAllocation::new`].
    pub(super) fn make_room(self: &Arc<Self>, program: &Program) -> Result<()> {
        let is_refusing =
            |argument: &Argument| matches!(argument, Argument::Refusing | Argument::RefusingAt(_));
        if program.launches.iter().any(|launch| launch.arguments.iter().any(is_refusing)) {
            self.make_record()?;
        }
        let has_enough =
            |tail: &StreamTail| tail.scratch.as_ref().is_some_and(|room| room.bytes >= program.scratch);
        if program.scratch > 0 && !has_enough(&self.tail()) {
            let room = DeviceAllocation::new(self, program.scratch)?;
            let mut tail = self.tail();
            if !has_enough(&tail)
                && let Some(smaller) = tail.scratch.replace(room)
            {
                tail.hold(smaller);
                self.let_sweep(&mut tail);
            }
        }
        program.then.iter().try_for_each(|program| self.make_room(program))
    }
}

impl Filled<'_> {
    fn operand(&self, launch: &Launch, number: usize, bytes: u64) -> Result<LaunchValue> {
        let address = self.operands.get(number).ok_or_else(|| {
            let what =
                format!("{} needs operand {number}, and there are {}", launch.entry, self.operands.len());
            Error::usage(what, "correct its program")
        })?;
        Ok([address + bytes, 0, 0])
    }
}
