//! The form of a role's tensor in the files: the shapes that they must have, and the place of the
//! canonical rows in them.

use motet_formats::Format;
use motet_protocol::ModelError;

use super::blueprint::{Blueprint, Layer, Mixer};
use super::formats::Formats;
use super::located::{Layout, Runs, Tiles};
use super::mxfp4;
use super::names::Form;
use super::role::{Needed, Role, of_layer};
use super::stored::Stored;

/// The files' tensors of a role, and the place of its rows in them.
pub(super) struct Plan {
    /// Shape of each.
    shape: Vec<usize>,
    /// Tensors: one, or one for each expert.
    tensors: usize,
    pub(super) is_pair: bool,
    pub(super) width: usize,
    pub(super) layout: Layout,
    /// Whether blocks of a quantised format would span several rows.
    pub(super) plain_formats: bool,
}

/// The canonical tensor of a role as matrices: one for each expert, or just one.
struct Matrices<'a> {
    blueprint: &'a Blueprint,
    layer: Option<&'a Layer>,
    role: Role,
    count: usize,
    /// Rows of each. The elements of a vector are rows.
    rows: usize,
    /// Elements of a row.
    width: usize,
}

impl<'a> Matrices<'a> {
    fn of(blueprint: &'a Blueprint, layer: Option<&'a Layer>, needed: &Needed) -> Self {
        let is_of_experts = needed.role.is_of_experts();
        let (rows, width) = match needed.shape[usize::from(is_of_experts)..] {
            [rows] => (rows, 1),
            [rows, width] => (rows, width),
            _ => unreachable!("a role has one or two dimensions beside the experts"),
        };
        Self {
            blueprint,
            layer,
            role: needed.role,
            count: if is_of_experts { needed.shape[0] } else { 1 },
            rows,
            width,
        }
    }

    /// All rows at once.
    fn whole(&self) -> Layout {
        let rows = self.count * self.rows;
        Layout::Runs(Runs {
            start: 0,
            rows,
            stride: rows,
            count: 1,
        })
    }

    /// The rows of this role in matrices that stack several roles.
    fn stacked(&self, roles: &[Role]) -> Runs {
        let before = roles.iter().take_while(|one| **one != self.role);
        Runs {
            start: before.map(|role| self.rows_of(*role)).sum(),
            rows: self.rows,
            stride: roles.iter().map(|role| self.rows_of(*role)).sum(),
            count: self.count,
        }
    }

    /// The rows of this role in matrices where the rows of several roles alternate, `unit` rows of
    /// each. The runs of one matrix go on in the next one.
    fn alternating(&self, roles: &[Role], unit: usize, matrices: usize) -> Runs {
        let before = roles.iter().take_while(|one| **one != self.role).count();
        Runs {
            start: before * unit,
            rows: unit,
            stride: roles.len() * unit,
            count: self.rows / unit * matrices,
        }
    }

    /// Rows of another role of the layer.
    fn rows_of(&self, role: Role) -> usize {
        let hidden = self.blueprint.stem.hidden_size;
        let all = self.layer.map(|layer| of_layer(layer, hidden));
        let mut all = all.unwrap_or_default().into_iter();
        let found = all.find(|(one, _)| *one == role);
        found.map_or(0, |(_, shape)| shape[usize::from(role.is_of_experts())])
    }

    /// Heads that the rows of a tensor of attention have.
    fn heads(&self) -> usize {
        match (self.layer.map(|layer| &layer.mixer), self.role) {
            (
                Some(Mixer::Attention(one)),
                Role::Key | Role::KeyBias | Role::Value | Role::ValueBias,
            ) => one.kv_heads,
            (Some(Mixer::Attention(one)), _) => one.heads,
            _ => 1,
        }
    }
}

impl Plan {
    pub(super) fn of(
        blueprint: &Blueprint,
        layer: Option<&Layer>,
        needed: &Needed,
        form: Form,
    ) -> Self {
        let matrices = Matrices::of(blueprint, layer, needed);
        let (count, rows, width) = (matrices.count, matrices.rows, matrices.width);
        let mut plan = Self {
            shape: needed.shape.clone(),
            tensors: 1,
            is_pair: false,
            width,
            layout: matrices.whole(),
            plain_formats: width == 1 || needed.role == Role::Conv,
        };
        let row_axis = usize::from(needed.role.is_of_experts());
        match form {
            Form::Whole => {}
            Form::Stacked(roles) => {
                let runs = matrices.stacked(roles);
                plan.shape[row_axis] = runs.stride;
                plan.layout = Layout::Runs(runs);
            }
            Form::HeadByHead(roles) => {
                let unit = rows / matrices.heads();
                plan.shape[row_axis] = roles.len() * rows;
                plan.layout = Layout::Runs(matrices.alternating(roles, unit, count));
            }
            Form::RowByRow(roles) => {
                plan.shape[row_axis] = roles.len() * rows;
                plan.layout = Layout::Runs(matrices.alternating(roles, 1, count));
            }
            Form::ColumnByColumn(roles) => {
                plan.shape = vec![count, width, roles.len() * rows];
                plan.plain_formats = true;
                plan.layout = Layout::Columns {
                    runs: matrices.alternating(roles, 1, 1),
                    matrices: count,
                };
            }
            Form::Mxfp4(roles) => {
                plan.is_pair = true;
                plan.shape = vec![count, roles.len() * rows, width];
                plan.layout = Layout::Mxfp4(matrices.alternating(roles, 1, count));
            }
            Form::PerExpert => {
                plan.tensors = count;
                plan.shape.remove(0);
                plan.layout = Layout::Runs(Runs {
                    start: 0,
                    rows,
                    stride: rows,
                    count: 1,
                });
            }
            Form::InterleavedHeads => {
                let heads = matrices.heads();
                plan.layout = Layout::InterleavedHeads { heads };
            }
            Form::TiledValueHeads => {
                plan.layout = tiled(layer, needed.role).unwrap_or(plan.layout);
            }
        }
        plan
    }

    /// Names and shapes of the files' tensors.
    pub(super) fn files(&self, spelled: &str) -> Vec<(String, Vec<usize>)> {
        if self.is_pair {
            let (blocks, scales) = mxfp4::shapes(&self.shape);
            return vec![
                (format!("{spelled}_blocks"), blocks),
                (format!("{spelled}_scales"), scales),
            ];
        }
        if self.tensors == 1 && !spelled.contains("{}") {
            return vec![(spelled.to_owned(), self.shape.clone())];
        }
        let of = |expert: usize| {
            (
                spelled.replace("{}", &expert.to_string()),
                self.shape.clone(),
            )
        };
        (0..self.tensors).map(of).collect()
    }

    /// Whether the files may have the tensor in MLX's groups.
    pub(super) fn may_be_grouped(&self) -> bool {
        !self.plain_formats && matches!(self.layout, Layout::Runs(_))
    }

    /// Checks a tensor's shape, in which sizes of 1 do not count, and its format.
    pub(super) fn check(
        &self,
        stored: &Stored,
        role: Role,
        spelled: &str,
        shape: &[usize],
        formats: &Formats,
    ) -> Result<Format, ModelError> {
        let significant = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|size| *size != 1).collect()
        };
        let is_same = significant(&stored.shape) == significant(shape)
            // Mamba 2's norm has a dimension for its groups in GGUF files.
            || role == Role::InnerNorm && Some(shape[0]) == product(&stored.shape);
        let own = if is_same { &stored.shape } else { shape };
        stored.check(spelled, own, formats)
    }
}

fn product(shape: &[usize]) -> Option<usize> {
    let mut sizes = shape.iter();
    sizes.try_fold(1usize, |all, size| all.checked_mul(*size))
}

/// The order of a delta net's value heads in GGUF files. None if it is the canonical one.
fn tiled(layer: Option<&Layer>, role: Role) -> Option<Layout> {
    let Some(Layer {
        mixer: Mixer::DeltaNet(delta),
        ..
    }) = layer
    else {
        return None;
    };
    if delta.key_heads == delta.value_heads {
        return None;
    }
    let unit = match role {
        Role::MixerInput | Role::Conv | Role::DeltaGate | Role::MixerOutput => delta.value_dim,
        _ => 1,
    };
    let tiles = Tiles {
        unit,
        keys: delta.key_heads,
        per_key: delta.value_heads / delta.key_heads,
    };
    let fixed = match role {
        Role::MixerInput | Role::Conv => 2 * delta.key_heads * delta.key_dim,
        _ => 0,
    };
    Some(match role {
        Role::MixerOutput => Layout::TiledColumns(tiles),
        _ => Layout::TiledRows { fixed, tiles },
    })
}
