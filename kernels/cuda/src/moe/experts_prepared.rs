//! Gated rows that experts leave as the kernel for the next product reads them, in place of a pass of its own: in the
//! order of codes of 4 bits, or as codes of 8. They take no more memory than the numbers that they stand for.

use crate::layers::groups::Group;
use crate::moe::experts::{Call, Keep};
use crate::moe::experts_codes::GROUP;
use crate::moe::experts_packed::PackedExperts;
use crate::runtime::activations::View;
use crate::runtime::device::Device;
use crate::weights::packed::CHUNK;

impl Call<'_> {
    /// Whether both this product and that of its rows with `reader` have kernels for that.
    pub(crate) fn may_prepare(&self, device: &mut Device, reader: &Group) -> bool {
        let (Some(experts), Some(next)) = (&self.group.packed, &reader.packed) else { return false };
        let then = Call {
            x: self.out,
            is_prepared: true,
            group: reader,
            keep: Keep::All,
            out: View { width: reader.n, ..self.out },
            prepares: false,
            ..*self
        };
        let gives = Call { prepares: true, ..*self };
        let is_asked = matches!(self.keep, Keep::Gated(_)) && self.out.dtype == self.x.dtype;
        if !is_asked || self.out.width != reader.k {
            return false;
        }
        let form = gives.prepared_form(device, experts);
        form.is_some() && form == then.prepared_form(device, next)
    }

    /// How rows lie that the kernel of this product reads, or leaves, if it can be compiled.
    fn prepared_form(&self, device: &mut Device, experts: &PackedExperts) -> Option<Form> {
        let width = if self.prepares { self.out.width } else { self.x.width };
        if width.is_multiple_of(GROUP) && self.multiplies_codes(device, experts) {
            return Some(Form::Codes);
        }
        (width.is_multiple_of(CHUNK) && self.many(device, experts).is_some()).then_some(Form::Ordered)
    }
}

/// How rows lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// `quantize_groups` of `csrc/gemm/prepare_input.cu`.
    Codes,
    /// `reorder_input` of `csrc/gemm/prepare_input.cu`.
    Ordered,
}
