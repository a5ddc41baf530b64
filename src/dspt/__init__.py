"""dspt"""
