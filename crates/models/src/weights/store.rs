//! Putting slices together and handing them to a device; and a dry run that finds every fault before a byte is loaded.

use std::borrow::Cow;

use kernels::ops::{
    Act, Backend, DType, ExpertRouting, HostMatrix, Matrix, MatrixGroup, Noise, NoiseRows, Table, Vector,
};

use super::{Chunk, Random, Role, Slice, Weights, cast};
use crate::activations::ActivationPool;
use crate::error::LoadError;

/// Receives a model's weights one after the other, and gives buffers to work in. Slices of one call are stacked by rows.
pub(crate) trait Store {
    /// A matrix, then `pad_rows` rows of zeros.
    fn matrix(&mut self, stack: &[Slice], pad_rows: usize) -> Result<Matrix, LoadError>;
    /// A lookup table, then `pad_rows` rows of zeros.
    fn table(&mut self, stack: &[Slice], pad_rows: usize) -> Result<Table, LoadError>;
    /// The rows of a matrix as a lookup table, without further memory.
    fn table_of(&mut self, matrix: Matrix) -> Table;
    /// A vector, plus `offset` in every element.
    fn vector(&mut self, stack: &[Slice], offset: f32) -> Result<Vector, LoadError>;
    /// A vector made of what is stored.
    fn vector_of(&mut self, stack: &[Slice], make: &dyn Fn(Vec<f32>) -> Vec<f32>) -> Result<Vector, LoadError>;
    /// A vector that is in no file.
    fn constants(&mut self, values: &[f32]) -> Vector;
    /// Matrices of one shape under one handle.
    fn group(&mut self, members: &[Matrix]) -> MatrixGroup;
    /// An activation buffer with room for every row of a step, shared by all that ask for the same role and width.
    fn buffer(&mut self, role: &'static str, width: usize) -> Act {
        self.rows_buffer(role, 1, width)
    }
    /// The same with `times` rows for each row of a step.
    fn rows_buffer(&mut self, role: &'static str, times: usize, width: usize) -> Act;
    /// The same for values that no device may round.
    fn exact_buffer(&mut self, role: &'static str, times: usize, width: usize) -> Act;
    /// Room for the experts of every row of a step, `top_k` each; shared like buffers.
    fn choice(&mut self, top_k: usize) -> ExpertRouting;
}

/// Checks that all weights are there and counts their bytes.
pub(crate) struct Measure<'a> {
    pub weights: &'a dyn Weights,
    /// Bytes that loading will read.
    pub bytes: u64,
    /// Matrices of one group are stored as different types.
    pub mixed: bool,
    /// How each matrix is stored; absent where its slices differ.
    stored: Vec<Option<DType>>,
}

impl<'a> Measure<'a> {
    pub(crate) fn new(weights: &'a dyn Weights) -> Self {
        Self { weights, bytes: 0, mixed: false, stored: Vec::new() }
    }

    fn add(&mut self, stack: &[Slice]) -> Result<Option<DType>, LoadError> {
        let mut stored = Vec::with_capacity(stack.len());
        for slice in stack {
            let dtype = self.weights.check(slice)?;
            self.bytes += (slice.elements() * dtype.size()) as u64;
            stored.push(dtype);
        }
        Ok(stored.first().copied().filter(|first| stored.iter().all(|dtype| dtype == first)))
    }
}

impl Store for Measure<'_> {
    fn matrix(&mut self, stack: &[Slice], _: usize) -> Result<Matrix, LoadError> {
        let dtype = self.add(stack)?;
        self.stored.push(dtype);
        Ok(Matrix((self.stored.len() - 1) as u32))
    }

    fn table(&mut self, stack: &[Slice], _: usize) -> Result<Table, LoadError> {
        self.add(stack).map(|_| Table(0))
    }

    fn table_of(&mut self, _: Matrix) -> Table {
        Table(0)
    }

    fn vector(&mut self, stack: &[Slice], _: f32) -> Result<Vector, LoadError> {
        self.add(stack).map(|_| Vector(0))
    }

    fn vector_of(&mut self, stack: &[Slice], _: &dyn Fn(Vec<f32>) -> Vec<f32>) -> Result<Vector, LoadError> {
        self.add(stack).map(|_| Vector(0))
    }

    fn constants(&mut self, _: &[f32]) -> Vector {
        Vector(0)
    }

    fn group(&mut self, members: &[Matrix]) -> MatrixGroup {
        let stored = |matrix: &Matrix| self.stored[matrix.0 as usize];
        self.mixed |= members.iter().any(|matrix| stored(matrix) != stored(&members[0]));
        MatrixGroup(0)
    }

    fn rows_buffer(&mut self, _: &'static str, _: usize, _: usize) -> Act {
        Act(0)
    }

    fn exact_buffer(&mut self, _: &'static str, _: usize, _: usize) -> Act {
        Act(0)
    }

    fn choice(&mut self, _: usize) -> ExpertRouting {
        ExpertRouting(0)
    }
}

/// Loads onto a device.
pub(crate) struct Loader<'a> {
    pub weights: &'a dyn Weights,
    pub backend: &'a mut dyn Backend,
    /// With `F32` weights stay as they are stored, where `as_stored`; else they are cast to this type.
    pub compute: DType,
    /// Matrices that run as one group are stored as one type.
    pub as_stored: bool,
    /// Told the bytes read so far.
    pub progress: &'a mut dyn FnMut(u64),
    /// Bytes read so far.
    pub read: u64,
    /// Bytes on the device so far.
    pub resident: u64,
    pub buffers: ActivationPool,
}

impl<'a> Loader<'a> {
    /// The stack's pieces in one element type, as they lie in their files where nothing has to be done to them.
    fn stacked(&mut self, stack: &[Slice], pad_rows: usize) -> Result<Vec<Chunk<'a>>, LoadError> {
        let weights = self.weights;
        let mut chunks = Vec::with_capacity(stack.len());
        for slice in stack {
            let chunk = weights.fetch(slice)?;
            chunks.push(if slice.role == Role::UnitRows { unit_rows(&chunk, slice.cols.len()) } else { chunk });
        }
        let dtype = self.stored_type(chunks.iter().map(|chunk| chunk.dtype));
        for Chunk { dtype: stored, bytes } in &mut chunks {
            *bytes = cast::cast(*stored, std::mem::take(bytes), dtype);
            *stored = dtype;
        }
        if pad_rows > 0 {
            let zeros = vec![0; pad_rows * shape(stack, 0).1 * dtype.size()];
            chunks.push(Chunk { dtype, bytes: Cow::Owned(zeros) });
        }
        self.resident += chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
        self.count(stack)?;
        Ok(chunks)
    }

    /// Tells that a stack was read.
    fn count(&mut self, stack: &[Slice]) -> Result<(), LoadError> {
        for slice in stack {
            self.read += (slice.elements() * self.weights.check(slice)?.size()) as u64;
        }
        (self.progress)(self.read);
        Ok(())
    }

    /// Lets the device make a stack of random matrices; absent where they must be fetched.
    fn made<T>(
        &mut self,
        stack: &[Slice],
        pad_rows: usize,
        make: impl FnOnce(&mut dyn Backend, Noise<'_>) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let dtypes = stack.iter().map(|slice| self.weights.check(slice)).collect::<Result<Vec<_>, _>>()?;
        let dtype = self.stored_type(dtypes.into_iter());
        let values: Option<Vec<Random>> = stack.iter().map(|slice| self.weights.random(slice, dtype)).collect();
        let Some(values) = values.filter(|values| !values.is_empty()) else { return Ok(None) };
        let parts: Vec<NoiseRows<'_>> = values.iter().zip(stack).map(|(values, slice)| values.rows(slice)).collect();
        let (rows, cols) = shape(stack, pad_rows);
        let Some(made) = make(&mut *self.backend, Noise { dtype, cols, parts: &parts, pad_rows }) else {
            return Ok(None);
        };
        self.resident += (rows * cols * dtype.size()) as u64;
        self.count(stack)?;
        Ok(Some(made))
    }

    /// Element type on the device: as stored when computing in f32 (which holds every type exactly), else the computing type.
    fn stored_type(&self, mut stored: impl Iterator<Item = DType>) -> DType {
        match (self.compute, stored.next()) {
            (DType::F32, Some(first)) if self.as_stored && stored.all(|dtype| dtype == first) => first,
            (compute, _) => compute,
        }
    }
}

/// Each row divided by its length, in f32; rows of zeros stay.
fn unit_rows(chunk: &Chunk<'_>, width: usize) -> Chunk<'static> {
    let mut values = cast::widen(chunk.dtype, &chunk.bytes);
    for row in values.chunks_exact_mut(width) {
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
        row.iter_mut().for_each(|x| *x /= length);
    }
    let mut bytes = Vec::with_capacity(values.len() * DType::F32.size());
    cast::narrow(values.into_iter(), DType::F32, &mut bytes);
    Chunk { dtype: DType::F32, bytes: Cow::Owned(bytes) }
}

/// Rows and columns of a stack.
fn shape(stack: &[Slice], pad_rows: usize) -> (usize, usize) {
    let rows = stack.iter().map(|slice| slice.rows.len()).sum::<usize>();
    (rows + pad_rows, stack.first().map_or(0, |slice| slice.cols.len()))
}

impl Store for Loader<'_> {
    fn matrix(&mut self, stack: &[Slice], pad_rows: usize) -> Result<Matrix, LoadError> {
        let compute = self.compute;
        if let Some(matrix) = self.made(stack, pad_rows, |backend, noise| backend.make_matrix(noise, compute))? {
            return Ok(matrix);
        }
        let chunks = self.stacked(stack, pad_rows)?;
        let (_, cols) = shape(stack, pad_rows);
        let rows = stack.iter().map(|slice| slice.rows.len()).chain([pad_rows]);
        let piece = |(chunk, rows)| {
            let Chunk { dtype, bytes }: &Chunk<'_> = chunk;
            HostMatrix { dtype: *dtype, rows, cols, bytes }
        };
        let pieces: Vec<HostMatrix<'_>> = chunks.iter().zip(rows).map(piece).collect();
        Ok(self.backend.load_stack(&pieces, self.compute))
    }

    fn table(&mut self, stack: &[Slice], pad_rows: usize) -> Result<Table, LoadError> {
        if let Some(table) = self.made(stack, pad_rows, |backend, noise| backend.make_table(noise))? {
            return Ok(table);
        }
        let (rows, cols) = shape(stack, pad_rows);
        let mut chunks = self.stacked(stack, pad_rows)?;
        let Chunk { dtype, mut bytes } = chunks.remove(0);
        chunks.iter().for_each(|more| bytes.to_mut().extend_from_slice(&more.bytes));
        Ok(self.backend.load_table(HostMatrix { dtype, rows, cols, bytes: &bytes }))
    }

    fn table_of(&mut self, matrix: Matrix) -> Table {
        self.backend.table_of(matrix)
    }

    fn vector(&mut self, stack: &[Slice], offset: f32) -> Result<Vector, LoadError> {
        self.vector_of(stack, &|values| values.into_iter().map(|x| x + offset).collect())
    }

    fn vector_of(&mut self, stack: &[Slice], make: &dyn Fn(Vec<f32>) -> Vec<f32>) -> Result<Vector, LoadError> {
        let mut values = Vec::new();
        for slice in stack {
            let chunk = self.weights.fetch(slice)?;
            self.read += chunk.bytes.len() as u64;
            values.extend(cast::widen(chunk.dtype, &chunk.bytes));
        }
        (self.progress)(self.read);
        Ok(self.constants(&make(values)))
    }

    fn constants(&mut self, values: &[f32]) -> Vector {
        self.resident += std::mem::size_of_val(values) as u64;
        self.backend.load_vector(values)
    }

    fn group(&mut self, members: &[Matrix]) -> MatrixGroup {
        self.backend.group_matrices(members)
    }

    fn rows_buffer(&mut self, role: &'static str, times: usize, width: usize) -> Act {
        self.buffers.shared(role, times, width, self.backend)
    }

    fn exact_buffer(&mut self, role: &'static str, times: usize, width: usize) -> Act {
        self.buffers.exact(role, times, width, self.backend)
    }

    fn choice(&mut self, top_k: usize) -> ExpertRouting {
        self.buffers.choice(top_k, self.backend)
    }
}
