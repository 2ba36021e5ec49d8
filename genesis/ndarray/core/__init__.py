"""Arrays themselves: values, storages, views, realisation, memory of others."""
