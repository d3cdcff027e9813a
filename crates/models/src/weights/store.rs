//! Putting slices together and handing them to a device; and a dry run that finds every fault before a byte is loaded.

use std::borrow::Cow;
use std::panic::resume_unwind;
use std::thread;

use kernels::ops::{
    Act, Backend, DType, ExpertRouting, HostMatrix, InputRounding, LoraShape, LoraSite, Matrix, MatrixGroup, MatrixUse,
    Noise, NoiseRows, SavedShape, SavedSite, Table, Vector, WeightFormat,
};

use super::{Chunk, Decoding, Fetched, Random, Role, Slice, Stored, Weights, cast};
use crate::activations::Buffers;
use crate::error::LoadError;
use crate::load::ActivationRounding;
use crate::lora::LoraOptions;
use crate::quant::Online;

/// Receives a model's weights one after the other, and gives buffers to work in. Slices of one call are stacked by
/// rows.
pub(crate) trait Store {
    /// A matrix, then `pad_rows` rows of zeros.
    fn matrix(&mut self, stack: &[Slice], pad_rows: usize, by: MatrixUse) -> Result<Matrix, LoadError>;
    /// Matrices, each of one stack.
    fn matrices(&mut self, stacks: &[Vec<Slice>], by: MatrixUse) -> Result<Vec<Matrix>, LoadError> {
        stacks.iter().map(|stack| self.matrix(stack, 0, by)).collect()
    }
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
    /// Matrices of one shape under one handle; `by`: what multiplies by them.
    fn group(&mut self, members: &[Matrix], by: MatrixUse) -> MatrixGroup;
    /// See [`kernels::ops::Load::join_heads`].
    fn joined(&mut self, absorb: MatrixGroup, restore: MatrixGroup) -> Option<Matrix> {
        let _ = (absorb, restore);
        None
    }
    /// Room for the adapters of a linear layer, where there are to be any: its input features, and the output features
    /// of each projection that it stacks; of experts, how many.
    fn lora_site(&mut self, inputs: usize, outputs: &[usize], experts: Option<usize>) -> Option<LoraSite> {
        let _ = (inputs, outputs, experts);
        None
    }
    /// Room for matrices `[rows, cols]` that adapters have in place of the model's, where there are to be any.
    fn saved_site(&mut self, rows: usize, cols: usize) -> Option<SavedSite> {
        let _ = (rows, cols);
        None
    }
    /// Tokens that adapters may have behind the model's own.
    fn extra_vocab(&self) -> usize {
        0
    }
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
    /// Matrices of one group are stored in different formats.
    pub mixed: bool,
    /// How each matrix is stored; absent where its slices differ.
    stored: Vec<Option<WeightFormat>>,
    /// Whether linear layers are told from others by taking adapters.
    adapted: bool,
    /// Tokens that adapters may have behind the model's own.
    extra_vocab: usize,
}

impl<'a> Measure<'a> {
    pub(crate) fn new(weights: &'a dyn Weights) -> Self {
        Self { weights, bytes: 0, mixed: false, stored: Vec::new(), adapted: false, extra_vocab: 0 }
    }

    /// The same where linear layers take adapters.
    pub(crate) fn adapted(weights: &'a dyn Weights) -> Self {
        Self { adapted: true, ..Self::new(weights) }
    }

    /// The same where adapters may have tokens of their own.
    pub(crate) fn with_extra_vocab(self, extra_vocab: usize) -> Self {
        Self { extra_vocab, ..self }
    }

    fn add(&mut self, stack: &[Slice]) -> Result<Option<WeightFormat>, LoadError> {
        let mut formats = Vec::with_capacity(stack.len());
        for slice in stack {
            let Stored { format, bytes } = self.weights.check(slice)?;
            self.bytes += bytes;
            formats.push(format);
        }
        Ok(common(&formats))
    }
}

/// The format that all of these are.
fn common(formats: &[WeightFormat]) -> Option<WeightFormat> {
    formats.first().copied().filter(|first| formats.iter().all(|format| format == first))
}

impl Store for Measure<'_> {
    fn extra_vocab(&self) -> usize {
        self.extra_vocab
    }

    fn matrix(&mut self, stack: &[Slice], _: usize, _: MatrixUse) -> Result<Matrix, LoadError> {
        let format = self.add(stack)?;
        self.stored.push(format);
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

    fn group(&mut self, members: &[Matrix], _: MatrixUse) -> MatrixGroup {
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

    fn lora_site(&mut self, _: usize, _: &[usize], _: Option<usize>) -> Option<LoraSite> {
        self.adapted.then_some(LoraSite(0))
    }
}

/// Loads onto a device.
pub(crate) struct Loader<'a> {
    pub weights: &'a dyn Weights,
    pub backend: &'a mut dyn Backend,
    /// With `F32` weights stay as they are stored, where `as_stored`; else plain ones are cast to this type.
    pub compute: DType,
    /// Matrices that run as one group are stored in one format.
    pub as_stored: bool,
    /// Where inputs of products are rounded as the checkpoint asks.
    pub activations: ActivationRounding,
    /// How many decode.
    pub threads: usize,
    /// What numbers become.
    pub online: Option<Online>,
    /// Told the bytes read so far.
    pub progress: &'a mut dyn FnMut(u64),
    /// Bytes read so far.
    pub read: u64,
    /// Adapters that linear layers have room for.
    pub lora: Option<LoraOptions>,
    /// What is on the device so far.
    pub resident: Resident,
    pub buffers: Buffers<'a>,
}

/// Weights on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// With their scales.
    pub bytes: u64,
    /// Elements of matrices, tables and vectors.
    pub weights: u64,
}

impl<'a> Loader<'a> {
    /// The stack's pieces in one format: as they are stored where a device multiplies by that, else as numbers of one
    /// type.
    fn pieces(
        &mut self,
        stack: &[Slice],
        pad_rows: usize,
        by: Option<MatrixUse>,
    ) -> Result<Vec<Fetched<'a>>, LoadError> {
        let weights = self.weights;
        let fetched = stack.iter().map(|slice| weights.fetch(slice)).collect::<Result<_, _>>()?;
        self.pieces_of(fetched, stack, pad_rows, by)
    }

    /// The same of what was fetched.
    fn pieces_of(
        &mut self,
        fetched: Vec<Fetched<'a>>,
        stack: &[Slice],
        pad_rows: usize,
        by: Option<MatrixUse>,
    ) -> Result<Vec<Fetched<'a>>, LoadError> {
        let online = self.online.filter(|online| self.quantizes(*online, stack, by));
        let mut pieces = Vec::with_capacity(stack.len() + 1);
        for (slice, fetched) in stack.iter().zip(fetched) {
            pieces.push(match (slice.role, online, fetched) {
                (_, Some(online), Fetched::Plain(chunk)) => online.quantize(&chunk, slice.cols.len(), self.threads),
                (Role::UnitRows, _, fetched) => Fetched::Plain(unit_rows(fetched, slice.cols.len(), self.threads)),
                (_, _, fetched) => fetched,
            });
        }
        if !self.rounds_inputs(&pieces, stack, pad_rows, by) {
            pieces.iter_mut().filter_map(Fetched::input_mut).for_each(|input| *input = InputRounding::None);
        }
        self.unify_inputs(&mut pieces, stack, by)?;
        if pad_rows > 0 || !self.keeps_format(&pieces, by) {
            self.check_inputs(&pieces, stack, by)?;
            pieces = self.plain(pieces, stack, pad_rows);
        }
        self.count(stack)?;
        Ok(pieces)
    }

    /// Whether numbers of this stack become something else.
    fn quantizes(&self, online: Online, stack: &[Slice], by: Option<MatrixUse>) -> bool {
        let Some(by @ (MatrixUse::Linear | MatrixUse::Experts)) = by else { return false };
        let projections = stack.iter().all(|slice| slice.role == Role::Projection);
        projections && self.backend.multiplies(online.format(shape(stack, 0).1), by)
    }

    /// Whether a device takes these, which are not numbers, as they are.
    fn keeps_format(&self, pieces: &[Fetched<'_>], by: Option<MatrixUse>) -> bool {
        let formats: Vec<WeightFormat> = pieces.iter().map(Fetched::format).collect();
        let Some((format, by)) = common(&formats).zip(by) else { return false };
        if pieces.iter().any(|piece| piece.columns() != pieces[0].columns()) {
            return false;
        }
        let grouped = matches!(by, MatrixUse::Experts | MatrixUse::Heads);
        !matches!(format, WeightFormat::Plain(_)) && (self.as_stored || !grouped) && self.backend.multiplies(format, by)
    }

    /// The pieces as numbers of one type, then rows of zeros.
    fn plain(&self, pieces: Vec<Fetched<'a>>, stack: &[Slice], pad_rows: usize) -> Vec<Fetched<'a>> {
        let width = shape(stack, 0).1;
        let dtype = self.stored_type(pieces.iter().map(|piece| match piece {
            Fetched::Plain(chunk) => chunk.dtype,
            Fetched::Scaled(_) | Fetched::Grouped(_) | Fetched::Blocks(_) => self.compute,
        }));
        let cast = |piece: Fetched<'a>| {
            let Chunk { dtype: stored, bytes } = piece.decoded(Decoding { cols: width, dtype, threads: self.threads });
            Chunk { dtype, bytes: cast::cast(stored, bytes, dtype) }
        };
        let mut pieces: Vec<Fetched<'a>> = pieces.into_iter().map(|piece| Fetched::Plain(cast(piece))).collect();
        if pad_rows > 0 {
            let zeros = vec![0; pad_rows * width * dtype.size()];
            pieces.push(Fetched::Plain(Chunk { dtype, bytes: Cow::Owned(zeros) }));
        }
        pieces
    }

    /// Whether the inputs of a product are rounded as its pieces ask for.
    fn rounds_inputs(&self, pieces: &[Fetched<'_>], stack: &[Slice], pad_rows: usize, by: Option<MatrixUse>) -> bool {
        let (_, cols) = shape(stack, pad_rows);
        match self.activations {
            ActivationRounding::None => false,
            ActivationRounding::AsConfigured => true,
            ActivationRounding::WhereFaster => {
                let gains = |by, format| self.backend.gains_by_rounding(format, by, cols, self.compute);
                pad_rows == 0
                    && self.keeps_format(pieces, by)
                    && by.is_some_and(|by| pieces.iter().all(|piece| gains(by, piece.format())))
            }
        }
    }

    /// Parts of one matrix multiply the same rows, so these are rounded once: of stored scales the largest counts, as
    /// in other engines.
    fn unify_inputs(
        &self,
        pieces: &mut [Fetched<'_>],
        stack: &[Slice],
        by: Option<MatrixUse>,
    ) -> Result<(), LoadError> {
        let inputs: Vec<&mut InputRounding> = pieces.iter_mut().filter_map(Fetched::input_mut).collect();
        let scale = |input: &&mut InputRounding| match **input {
            InputRounding::Static(scale) | InputRounding::StaticInt8(scale) => Some(scale),
            InputRounding::None | InputRounding::Dynamic { .. } | InputRounding::DynamicInt8 { .. } => None,
        };
        let Some(largest) = inputs.iter().filter_map(scale).reduce(f32::max) else { return Ok(()) };
        if by != Some(MatrixUse::Linear) {
            let tensor = stack.first().map_or_else(String::new, |slice| slice.location.tensor.clone());
            return Err(LoadError::Activations {
                tensor,
                reason: "stored scales of the inputs of experts are not supported",
            });
        }
        for input in inputs {
            if let InputRounding::Static(scale) | InputRounding::StaticInt8(scale) = input {
                *scale = largest;
            }
        }
        Ok(())
    }

    /// Fails where decoded pieces would forget that their inputs are to be rounded.
    fn check_inputs(&self, pieces: &[Fetched<'_>], stack: &[Slice], by: Option<MatrixUse>) -> Result<(), LoadError> {
        let rounds = |piece: &Fetched<'_>| piece.format().input() != InputRounding::None;
        let multiplies = matches!(by, Some(MatrixUse::Linear | MatrixUse::Experts));
        if !multiplies || !pieces.iter().any(rounds) {
            return Ok(());
        }
        let tensor = stack.first().map_or_else(String::new, |slice| slice.location.tensor.clone());
        Err(LoadError::Activations { tensor, reason: "this device does not multiply by such weights as they are" })
    }

    /// Tells that a stack was read.
    fn count(&mut self, stack: &[Slice]) -> Result<(), LoadError> {
        for slice in stack {
            self.read += self.weights.check(slice)?.bytes;
            self.resident.weights += slice.elements() as u64;
        }
        (self.progress)(self.read);
        Ok(())
    }

    /// How many of these are fetched together, one at least.
    fn batch(&self, stacks: &[Vec<Slice>]) -> Result<usize, LoadError> {
        const MOST: u64 = 256 << 20;
        let (mut count, mut bytes) = (0, 0);
        for stack in stacks {
            for slice in stack {
                bytes += self.weights.check(slice)?.bytes;
            }
            if count > 0 && bytes > MOST {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    /// A matrix that the device makes of random numbers; absent where it must be fetched.
    fn made_matrix(&mut self, stack: &[Slice], pad_rows: usize, by: MatrixUse) -> Result<Option<Matrix>, LoadError> {
        let compute = self.compute;
        if self.online.is_some_and(|online| self.quantizes(online, stack, Some(by))) {
            return Ok(None);
        }
        self.made(stack, pad_rows, |backend, noise| backend.make_matrix(noise, compute))
    }

    /// Lets the device make a stack of random matrices; absent where they must be fetched.
    fn made<T>(
        &mut self,
        stack: &[Slice],
        pad_rows: usize,
        make: impl FnOnce(&mut dyn Backend, Noise<'_>) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let mut dtypes = Vec::with_capacity(stack.len());
        for slice in stack {
            let WeightFormat::Plain(dtype) = self.weights.check(slice)?.format else { return Ok(None) };
            dtypes.push(dtype);
        }
        let dtype = self.stored_type(dtypes.into_iter());
        let values: Option<Vec<Random>> = stack.iter().map(|slice| self.weights.random(slice, dtype)).collect();
        let Some(values) = values.filter(|values| !values.is_empty()) else { return Ok(None) };
        let parts: Vec<NoiseRows<'_>> = values.iter().zip(stack).map(|(values, slice)| values.rows(slice)).collect();
        let (rows, cols) = shape(stack, pad_rows);
        let Some(made) = make(&mut *self.backend, Noise { dtype, cols, parts: &parts, pad_rows }) else {
            return Ok(None);
        };
        self.resident.bytes += (rows * cols * dtype.size()) as u64;
        self.count(stack)?;
        Ok(Some(made))
    }

    /// Type of plain numbers on the device: as stored when computing in f32 (which holds every type exactly), else the
    /// computing type.
    fn stored_type(&self, mut stored: impl Iterator<Item = DType>) -> DType {
        match (self.compute, stored.next()) {
            (DType::F32, Some(first)) if self.as_stored && stored.all(|dtype| dtype == first) => first,
            (compute, _) => compute,
        }
    }
}

/// Each row divided by its length, in f32; rows of zeros stay.
fn unit_rows(stored: Fetched<'_>, width: usize, threads: usize) -> Chunk<'static> {
    let chunk = stored.decoded(Decoding { cols: width, dtype: DType::F32, threads });
    let mut values = cast::widen(chunk.dtype, &chunk.bytes);
    for row in values.chunks_exact_mut(width) {
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
        row.iter_mut().for_each(|x| *x /= length);
    }
    let mut bytes = Vec::with_capacity(values.len() * DType::F32.size());
    cast::narrow(values.into_iter(), DType::F32, &mut bytes);
    Chunk { dtype: DType::F32, bytes: Cow::Owned(bytes) }
}

/// The slices of each stack, by several threads.
fn fetch<'a>(
    weights: &'a dyn Weights,
    stacks: &[Vec<Slice>],
    threads: usize,
) -> Result<Vec<Vec<Fetched<'a>>>, LoadError> {
    let share = stacks.len().div_ceil(threads.max(1)).max(1);
    let fetch = |stack: &Vec<Slice>| stack.iter().map(|slice| weights.fetch(slice)).collect();
    let parts: Vec<Result<Vec<Vec<Fetched<'a>>>, LoadError>> = thread::scope(|scope| {
        let part = |stacks: &'_ [Vec<Slice>]| stacks.iter().map(fetch).collect();
        let readers: Vec<_> = stacks.chunks(share).map(|stacks| scope.spawn(move || part(stacks))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut all = Vec::with_capacity(stacks.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

/// A stack's pieces, and zeros below.
fn host_matrices<'a>(pieces: &'a [Fetched<'_>], stack: &[Slice], pad_rows: usize) -> Vec<HostMatrix<'a>> {
    let (_, cols) = shape(stack, pad_rows);
    let rows = stack.iter().map(|slice| slice.rows.len()).chain([pad_rows]);
    pieces.iter().zip(rows).map(|(piece, rows)| piece.piece(rows, cols)).collect()
}

/// Rows and columns of a stack.
fn shape(stack: &[Slice], pad_rows: usize) -> (usize, usize) {
    let rows = stack.iter().map(|slice| slice.rows.len()).sum::<usize>();
    (rows + pad_rows, stack.first().map_or(0, |slice| slice.cols.len()))
}

impl Store for Loader<'_> {
    fn matrix(&mut self, stack: &[Slice], pad_rows: usize, by: MatrixUse) -> Result<Matrix, LoadError> {
        if let Some(matrix) = self.made_matrix(stack, pad_rows, by)? {
            return Ok(matrix);
        }
        let fetched = self.pieces(stack, pad_rows, Some(by))?;
        let matrix = self.backend.load_stack(&host_matrices(&fetched, stack, pad_rows), self.compute);
        self.resident.bytes += self.backend.held_bytes(matrix) as u64;
        Ok(matrix)
    }

    /// Several threads fetch them.
    fn matrices(&mut self, stacks: &[Vec<Slice>], by: MatrixUse) -> Result<Vec<Matrix>, LoadError> {
        let mut loaded = Vec::with_capacity(stacks.len());
        while let Some(stack) = stacks.get(loaded.len()) {
            if let Some(matrix) = self.made_matrix(stack, 0, by)? {
                loaded.push(matrix);
                continue;
            }
            let batch = &stacks[loaded.len()..][..self.batch(&stacks[loaded.len()..])?];
            let mut fetched = Vec::with_capacity(batch.len());
            for (stack, pieces) in batch.iter().zip(fetch(self.weights, batch, self.threads)?) {
                fetched.push(self.pieces_of(pieces, stack, 0, Some(by))?);
            }
            let sources: Vec<_> =
                fetched.iter().zip(batch).map(|(pieces, stack)| host_matrices(pieces, stack, 0)).collect();
            let matrices = self.backend.load_stacks(&sources, self.compute);
            self.resident.bytes += matrices.iter().map(|matrix| self.backend.held_bytes(*matrix) as u64).sum::<u64>();
            loaded.extend(matrices);
        }
        Ok(loaded)
    }

    fn table(&mut self, stack: &[Slice], pad_rows: usize) -> Result<Table, LoadError> {
        if let Some(table) = self.made(stack, pad_rows, |backend, noise| backend.make_table(noise))? {
            return Ok(table);
        }
        let (rows, cols) = shape(stack, pad_rows);
        let how = Decoding { cols, dtype: self.compute, threads: self.threads };
        let mut chunks = self.pieces(stack, pad_rows, None)?.into_iter().map(|piece| piece.decoded(how));
        let Some(Chunk { dtype, mut bytes }) = chunks.next() else { unreachable!("a table of no slices") };
        chunks.for_each(|more| bytes.to_mut().extend_from_slice(&more.bytes));
        self.resident.bytes += bytes.len() as u64;
        Ok(self.backend.load_table(HostMatrix::plain(dtype, rows, cols, &bytes)))
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
            let fetched = self.weights.fetch(slice)?;
            let how = Decoding { cols: slice.cols.len(), dtype: DType::F32, threads: self.threads };
            let chunk = fetched.decoded(how);
            self.read += chunk.bytes.len() as u64;
            self.resident.weights += slice.elements() as u64;
            values.extend(cast::widen(chunk.dtype, &chunk.bytes));
        }
        (self.progress)(self.read);
        Ok(self.constants(&make(values)))
    }

    fn constants(&mut self, values: &[f32]) -> Vector {
        self.resident.bytes += std::mem::size_of_val(values) as u64;
        self.backend.load_vector(values)
    }

    fn group(&mut self, members: &[Matrix], by: MatrixUse) -> MatrixGroup {
        self.backend.group_matrices(members, by)
    }

    fn joined(&mut self, absorb: MatrixGroup, restore: MatrixGroup) -> Option<Matrix> {
        let joined = self.backend.join_heads(absorb, restore);
        self.resident.bytes += joined.map_or(0, |matrix| self.backend.held_bytes(matrix) as u64);
        joined
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

    fn lora_site(&mut self, inputs: usize, outputs: &[usize], experts: Option<usize>) -> Option<LoraSite> {
        let LoraOptions { slots, max_rank, dtype, .. } = self.lora.filter(|lora| experts.is_none() || lora.experts)?;
        let dtype = dtype.unwrap_or(self.compute);
        Some(self.backend.new_lora_site(LoraShape { slots, max_rank, inputs, outputs, dtype, experts }))
    }

    fn saved_site(&mut self, rows: usize, cols: usize) -> Option<SavedSite> {
        let LoraOptions { slots, dtype, .. } = self.lora.filter(|lora| lora.saved_modules)?;
        let (dtype, compute) = (dtype.unwrap_or(self.compute), self.compute);
        Some(self.backend.new_saved_site(SavedShape { slots, rows, cols, dtype, compute }))
    }

    fn extra_vocab(&self) -> usize {
        self.lora.map_or(0, |lora| lora.extra_vocab)
    }
}
