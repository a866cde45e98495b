"""x"""
def redirect_files(patches, folder, kept): return []
