//! Recurrent state: one row of numbers a sequence, and the walk over a batch's sequences.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::cpu::runtime::batch::{Batch, Sequence};
use crate::cpu::runtime::memory::{Region, Shared};
use crate::ops::DType;

/// One layer's states `[slots, len]`.
pub(crate) struct States {
    slots: usize,
    pub(crate) len: usize,
    dtype: DType,
    region: Region,
}

impl States {
    pub(crate) fn new(slots: usize, len: usize, dtype: DType) -> Self {
        Self { slots, len, dtype, region: Region::new(slots * len * dtype.size()) }
    }

    /// Elements `from .. from + len` of a sequence's state in f32, zeroed where the sequence starts: the state itself,
    /// or in `wide` until [`States::close`].
    ///
    /// # Safety
    /// Nobody else uses these elements meanwhile.
    pub(crate) unsafe fn open<'a>(
        &'a self,
        sequence: &Sequence,
        from: usize,
        len: usize,
        wide: &'a mut Vec<f32>,
    ) -> &'a mut [f32] {
        if self.dtype != DType::F32 {
            wide.resize(len, 0.0);
            // SAFETY: the caller's promise.
            unsafe { self.read(sequence, from, wide) };
            return wide;
        }
        // SAFETY: the caller's promise; f32 is what is kept.
        let part = unsafe { self.part::<f32>(sequence, from, len) };
        if sequence.start == 0 {
            part.fill(0.0);
        }
        part
    }

    /// Keeps what [`States::open`] gave.
    ///
    /// # Safety
    /// Nobody else uses these elements meanwhile.
    pub(crate) unsafe fn close(&self, sequence: &Sequence, from: usize, values: &mut [f32]) {
        if self.dtype != DType::F32 {
            // SAFETY: the caller's promise.
            unsafe { self.write(sequence, from, values) };
        }
    }

    /// Elements from `from` on of a sequence's state; zeros where the sequence starts.
    ///
    /// # Safety
    /// Nobody writes these elements meanwhile.
    pub(crate) unsafe fn read(&self, sequence: &Sequence, from: usize, to: &mut [f32]) {
        if sequence.start == 0 {
            return to.fill(0.0);
        }
        // SAFETY: the caller's promise, and the types are what is kept.
        unsafe {
            match self.dtype {
                DType::F32 => to.copy_from_slice(self.part::<f32>(sequence, from, to.len())),
                DType::Bf16 => self.part::<bf16>(sequence, from, to.len()).convert_to_f32_slice(to),
                DType::F16 => self.part::<f16>(sequence, from, to.len()).convert_to_f32_slice(to),
            }
        }
    }

    /// Keeps these as the elements from `from` on, rounded to the type of the states; they may be overwritten.
    ///
    /// # Safety
    /// Nobody else uses these elements meanwhile.
    pub(crate) unsafe fn write(&self, sequence: &Sequence, from: usize, values: &mut [f32]) {
        // SAFETY: the caller's promise, and the types are what is kept.
        unsafe {
            match self.dtype {
                DType::F32 => self.part::<f32>(sequence, from, values.len()).copy_from_slice(values),
                DType::Bf16 => self.part::<bf16>(sequence, from, values.len()).convert_from_f32_slice(values),
                DType::F16 => {
                    let most = f16::MAX.to_f32();
                    values.iter_mut().for_each(|x| *x = x.clamp(-most, most));
                    self.part::<f16>(sequence, from, values.len()).convert_from_f32_slice(values);
                }
            }
        }
    }

    /// Elements `from .. from + len` of a sequence's state.
    ///
    /// # Safety
    /// `T` is the type of the states, and no other thread uses these elements meanwhile.
    #[allow(clippy::mut_from_ref, reason = "tasks own disjoint parts")]
    unsafe fn part<T>(&self, sequence: &Sequence, from: usize, len: usize) -> &mut [T] {
        assert!(from + len <= self.len, "elements {from}..{} of a state of {}", from + len, self.len);
        // SAFETY: the row was checked when the batch was taken, the elements above; the rest is the caller's promise.
        unsafe {
            let first = Shared::new(self.region.ptr().cast::<T>()).at(sequence.slot * self.len + from);
            std::slice::from_raw_parts_mut(first, len)
        }
    }

    /// Every sequence of the batch has a state, and no two the same.
    pub(crate) fn check(&self, batch: &Batch) {
        for (index, sequence) in batch.sequences.iter().enumerate() {
            assert!(sequence.slot < self.slots, "slot {} of {}", sequence.slot, self.slots);
            let twice = batch.sequences[..index].iter().any(|other| other.slot == sequence.slot);
            debug_assert!(!twice, "slot {} is two sequences'", sequence.slot);
        }
    }
}
