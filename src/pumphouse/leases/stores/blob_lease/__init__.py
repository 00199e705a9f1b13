"""A store in Azure Blob Storage, in the format of the Event Processor Host."""
