//! Weights on the device.
//!
//! On the CPU everything is dequantised to single precision at load, because MLX's other
//! formats have slow paths there. On a GPU quantised matrices stay as they are and plain ones
//! become bfloat16.

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::take_axis;
use mlx_rs::ops::{dequantize, quantized_matmul};
use mlx_rs::{Array, Dtype, transforms};

use super::merged_matrix::{Elements, MergedMatrix};
use super::ops::Ops;
use super::profile::{self, Cost, Op};
use crate::error::MlxError;
use motet_weights::ModelFiles;

/// Everything that a forward pass multiplies with.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    pub(super) embedding: Matrix,
    pub(super) layers: Vec<Layer>,
    /// Weight of the norm before the output head. Not folded in, because the head
    /// may be the embedding.
    pub(super) norm: Array,
    /// None when the head is the embedding.
    pub(super) head: Option<Matrix>,
}

/// One transformer block.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Option<Array>,
    /// To `[queries | keys | values]`.
    pub(super) packed: Matrix,
    pub(super) output: Matrix,
    pub(super) mlp_norm: Option<Array>,
    /// To `[gate | up]`.
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
}

/// A matrix `[out, in]` and a bias.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    /// The operation that its product is.
    product: Op,
    form: Form,
    bias: Option<Array>,
}

#[derive(Clone, Debug)]
enum Form {
    Plain {
        /// `[out, in]`.
        matrix: Array,
        /// `[in, out]`, a view of the same.
        transposed: Array,
    },
    Quantised {
        packed: Array,
        scales: Array,
        biases: Array,
        bits: i32,
        group_size: i32,
    },
}

impl Weights {
    /// Loads, folds and evaluates all weights, in `dtype`, on the current stream.
    ///
    /// # Errors
    ///
    /// The errors of [`ModelFiles::tensor`], and [`ModelError::Device`].
    pub(super) fn load(
        files: &ModelFiles,
        dtype: Dtype,
        keep_quantised: bool,
    ) -> Result<Self, MlxError> {
        let loader = Loader {
            files,
            dtype,
            keep_quantised,
        };
        let head = if files.config().tied_embeddings {
            None
        } else {
            Some(loader.matrix(Op::HeadProduct, loader.merged_matrix(&["lm_head.weight"])?)?)
        };
        Ok(Self {
            embedding: loader.matrix(
                Op::HeadProduct,
                loader.merged_matrix(&["model.embed_tokens.weight"])?,
            )?,
            layers: (0..files.config().layers)
                .map(|layer| loader.layer(layer))
                .collect::<Result<_, _>>()?,
            norm: loader.vector(&files.tensor("model.norm.weight")?.to_f32())?,
            head,
        })
    }

    /// The weight of the norm before layer `index`, or before the output head after the last
    /// layer. None where it is folded into the matrix after the norm.
    pub(super) fn norm_before(&self, index: usize) -> Option<&Array> {
        match self.layers.get(index) {
            Some(layer) => layer.attention_norm.as_ref(),
            None => Some(&self.norm),
        }
    }

    /// All arrays except views of others.
    pub(super) fn arrays(&self) -> Vec<&Array> {
        let matrices = [&self.embedding].into_iter().chain(&self.head);
        let mut all: Vec<&Array> = matrices.flat_map(Matrix::own_arrays).collect();
        for layer in &self.layers {
            all.extend(layer.attention_norm.iter().chain(&layer.mlp_norm));
            for matrix in [&layer.packed, &layer.output, &layer.gate_up, &layer.down] {
                all.extend(matrix.own_arrays());
            }
        }
        all.push(&self.norm);
        all
    }

    /// The matrix that turns a row into logits.
    pub(super) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

impl Matrix {
    /// `x` times the matrix, plus the bias.
    pub(super) fn apply(&self, x: &Array, ops: &Ops) -> Result<Array, Exception> {
        let weights = || Cost {
            read_bytes: self.bytes(),
            flops: 2 * x.size() * self.out(),
        };
        profile::op_beside(self.product, &[x], weights, || self.multiply(x, ops))
    }

    fn multiply(&self, x: &Array, ops: &Ops) -> Result<Array, Exception> {
        let bias = self.bias.as_ref();
        match &self.form {
            Form::Plain { matrix, transposed } => ops.linear(x, matrix, transposed, bias),
            Form::Quantised {
                packed,
                scales,
                biases,
                bits,
                group_size,
            } => {
                let product =
                    quantized_matmul(x, packed, scales, biases, true, *group_size, *bits)?;
                match bias {
                    Some(bias) => product.add(bias),
                    None => Ok(product),
                }
            }
        }
    }

    /// Rows `indices` of the matrix, as an embedding.
    pub(super) fn rows(&self, indices: &Array) -> Result<Array, Exception> {
        let rows = || Cost {
            read_bytes: self.bytes() / self.out() * indices.size(),
            flops: 0,
        };
        profile::op_beside(Op::EmbeddingRows, &[indices], rows, || self.take(indices))
    }

    fn take(&self, indices: &Array) -> Result<Array, Exception> {
        match &self.form {
            Form::Plain { matrix, .. } => take_axis(matrix, indices, 0),
            Form::Quantised {
                packed,
                scales,
                biases,
                bits,
                group_size,
            } => dequantize(
                take_axis(packed, indices, 0)?,
                take_axis(scales, indices, 0)?,
                &take_axis(biases, indices, 0)?,
                *group_size,
                *bits,
            ),
        }
    }
}

/// The inputs that all parts of loading share.
struct Loader<'a> {
    files: &'a ModelFiles,
    dtype: Dtype,
    keep_quantised: bool,
}

impl Loader<'_> {
    fn layer(&self, layer: usize) -> Result<Layer, MlxError> {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let projections = ["q_proj", "k_proj", "v_proj"].map(|part| format!("self_attn.{part}"));
        let (packed, attention_norm) = self.behind_norm(
            &projections.each_ref().map(|part| name(part)),
            &name("input_layernorm"),
        )?;
        let (gate_up, mlp_norm) = self.behind_norm(
            &[name("mlp.gate_proj"), name("mlp.up_proj")],
            &name("post_attention_layernorm"),
        )?;
        Ok(Layer {
            attention_norm,
            packed: self
                .matrix(Op::PackedProduct, packed)?
                .with_bias(self.bias(layer, &["q_proj", "k_proj", "v_proj"])?),
            output: self
                .matrix(
                    Op::OutputProduct,
                    self.merged_matrix(&[&name("self_attn.o_proj")])?,
                )?
                .with_bias(self.bias(layer, &["o_proj"])?),
            mlp_norm,
            gate_up: self.matrix(Op::GateUpProduct, gate_up)?,
            down: self.matrix(
                Op::DownProduct,
                self.merged_matrix(&[&name("mlp.down_proj")])?,
            )?,
        })
    }

    /// Loads matrices after a norm, with the norm's weight folded in. Where that is not
    /// possible, the weight is returned as well.
    fn behind_norm(
        &self,
        names: &[String],
        norm: &str,
    ) -> Result<(MergedMatrix, Option<Array>), MlxError> {
        let mut merged_matrix = MergedMatrix::read(self.files, names, self.keep_quantised)?;
        let norm = self.files.tensor(norm)?.to_f32();
        let folded = merged_matrix.scale_columns(&norm);
        let beside = if folded {
            None
        } else {
            Some(self.vector(&norm)?)
        };
        Ok((merged_matrix, beside))
    }

    fn merged_matrix(&self, names: &[&str]) -> Result<MergedMatrix, MlxError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        MergedMatrix::read(self.files, &names, self.keep_quantised)
    }

    fn bias(&self, layer: usize, parts: &[&str]) -> Result<Option<Array>, MlxError> {
        if !self.files.config().attention_bias {
            return Ok(None);
        }
        let mut bias = Vec::new();
        for part in parts {
            let name = format!("model.layers.{layer}.self_attn.{part}.bias");
            bias.append(&mut self.files.tensor(&name)?.to_f32());
        }
        self.vector(&bias).map(Some)
    }

    fn vector(&self, elements: &[f32]) -> Result<Array, MlxError> {
        let array = Array::from_slice(elements, &[elements.len() as i32]).as_dtype(self.dtype)?;
        array.eval()?;
        Ok(array)
    }

    fn matrix(&self, product: Op, merged_matrix: MergedMatrix) -> Result<Matrix, MlxError> {
        let rows = merged_matrix.rows as i32;
        let columns = merged_matrix.columns as i32;
        let form = match merged_matrix.elements {
            Elements::Plain(elements) => {
                let matrix = Array::from_slice(&elements, &[rows, columns]).as_dtype(self.dtype)?;
                let transposed = matrix.transpose()?;
                Form::Plain { matrix, transposed }
            }
            Elements::Affine {
                bits,
                group_size,
                packed,
                scales,
                biases,
            } => {
                let groups = [rows, columns / group_size as i32];
                Form::Quantised {
                    packed: Array::from_slice(&packed, &[rows, columns * bits as i32 / 32]),
                    scales: Array::from_slice(&scales, &groups).as_dtype(self.dtype)?,
                    biases: Array::from_slice(&biases, &groups).as_dtype(self.dtype)?,
                    bits: bits as i32,
                    group_size: group_size as i32,
                }
            }
        };
        let matrix = Matrix {
            product,
            form,
            bias: None,
        };
        transforms::eval(matrix.arrays())?;
        Ok(matrix)
    }
}

impl Matrix {
    fn with_bias(self, bias: Option<Array>) -> Self {
        Self { bias, ..self }
    }

    /// Length of an output row.
    fn out(&self) -> usize {
        match &self.form {
            Form::Plain { matrix, .. } => matrix.dim(0) as usize,
            Form::Quantised { packed, .. } => packed.dim(0) as usize,
        }
    }

    fn bytes(&self) -> usize {
        match &self.form {
            Form::Plain { matrix, .. } => matrix.nbytes(),
            Form::Quantised { .. } => self.arrays().iter().map(|array| array.nbytes()).sum(),
        }
    }

    /// Its arrays except views of others.
    fn own_arrays(&self) -> Vec<&Array> {
        let mut own = match &self.form {
            Form::Plain { matrix, .. } => vec![matrix],
            Form::Quantised { .. } => self.arrays(),
        };
        own.extend(&self.bias);
        own
    }

    fn arrays(&self) -> Vec<&Array> {
        match &self.form {
            Form::Plain { matrix, transposed } => vec![matrix, transposed],
            Form::Quantised {
                packed,
                scales,
                biases,
                ..
            } => vec![packed, scales, biases],
        }
    }
}
