//! The tier of an engine.

use std::fmt;
use std::sync::Arc;

use motet_protocol::Label;
use motet_protocol::pager::Ask;
use motet_protocol::remote::{RemoteCall, RemoteModel, RemoteTier};
use opendal::Operator;

use crate::secret::Secret;
use crate::store::Store;

/// A shared tier in one store.
pub struct Remote(Store);

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.0.operator().info();
        write!(f, "Remote({} {})", info.scheme(), info.name())
    }
}

impl Remote {
    /// A tier in this store. The operator should bound the time of its calls.
    #[must_use]
    pub fn new(operator: Operator, secret: &Secret) -> Self {
        Self(Store::new(operator, secret))
    }
}

impl RemoteTier for Remote {
    fn find<'a>(&'a self, model: &'a RemoteModel, ask: &'a Ask) -> RemoteCall<'a, Vec<Label>> {
        Box::pin(self.0.find_copies(model, ask))
    }

    fn load<'a>(
        &'a self,
        model: &'a RemoteModel,
        label: &'a Label,
        into: &'a mut [u8],
    ) -> RemoteCall<'a, ()> {
        Box::pin(self.0.load_copy(model, label, into))
    }

    fn store<'a>(
        &'a self,
        model: &'a RemoteModel,
        path: &'a [Arc<Label>],
        label: &'a Label,
        bytes: &'a [u8],
    ) -> RemoteCall<'a, ()> {
        Box::pin(self.0.store_copy(model, path, label, bytes))
    }
}
