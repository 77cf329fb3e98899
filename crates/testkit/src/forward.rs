//! Models that wrap another.

/// Implements the methods of a `Model` that deal with tails, segments and detached state by those of
/// the field `model`, for a wrapper whose associated types are the same. The wrapper writes the others:
/// `spec` and `memory`, and what a step goes through.
#[macro_export]
macro_rules! forward_state {
    () => {
        fn tail(
            &mut self,
            path: &[::std::rc::Rc<Self::Segment>],
            expected_tokens: usize,
        ) -> Result<Self::Tail, ::motet_protocol::ModelError> {
            self.model.tail(path, expected_tokens)
        }

        fn truncate(
            &mut self,
            tail: &mut Self::Tail,
            tokens: usize,
        ) -> Result<(), ::motet_protocol::ModelError> {
            self.model.truncate(tail, tokens)
        }

        fn seal(
            &mut self,
            tail: &mut Self::Tail,
            tokens: usize,
        ) -> Result<Self::Segment, ::motet_protocol::ModelError> {
            self.model.seal(tail, tokens)
        }

        fn seal_in_place(
            &mut self,
            tail: Self::Tail,
            tokens: ::std::ops::Range<usize>,
        ) -> Result<Self::Segment, ::motet_protocol::ModelError> {
            self.model.seal_in_place(tail, tokens)
        }

        fn split(
            &mut self,
            segment: &Self::Segment,
            at: usize,
        ) -> Result<(Self::Segment, Self::Segment), ::motet_protocol::ModelError> {
            self.model.split(segment, at)
        }

        fn merge(
            &mut self,
            upper: &Self::Segment,
            lower: &Self::Segment,
        ) -> Result<Self::Segment, ::motet_protocol::ModelError> {
            self.model.merge(upper, lower)
        }

        fn strip(
            &mut self,
            segment: &Self::Segment,
            below: &Self::Segment,
        ) -> Result<Self::Segment, ::motet_protocol::ModelError> {
            self.model.strip(segment, below)
        }

        fn remove(
            &mut self,
            path: &[::std::rc::Rc<Self::Segment>],
            retained: usize,
            tail: &mut Self::Tail,
            removed: ::std::ops::Range<usize>,
        ) -> Result<(), ::motet_protocol::ModelError> {
            self.model.remove(path, retained, tail, removed)
        }

        fn trim(&mut self) {
            self.model.trim();
        }

        fn packer(&self) -> Self::Packer {
            self.model.packer()
        }

        fn export(
            &mut self,
            segment: &Self::Segment,
        ) -> Result<::motet_model::DetachedState<Self>, ::motet_protocol::ModelError> {
            self.model.export(segment)
        }

        fn copy_out(
            &mut self,
            tail: &mut Self::Tail,
            tokens: ::std::ops::Range<usize>,
        ) -> Result<Option<::motet_model::DetachedState<Self>>, ::motet_protocol::ModelError> {
            self.model.copy_out(tail, tokens)
        }

        fn import(
            &mut self,
            detached_state: ::motet_model::DetachedState<Self>,
        ) -> Result<Self::Segment, ::motet_protocol::ModelError> {
            self.model.import(detached_state)
        }

        fn memory_left(&self) -> Option<::motet_model::MemoryLeft> {
            self.model.memory_left()
        }

        fn try_memory(&mut self, bytes: usize) -> Result<usize, ::motet_protocol::ModelError> {
            self.model.try_memory(bytes)
        }
    };
}
